"""``bertmill verify`` and ``inspect`` as a user calls them."""

from pathlib import Path

import pytest
import torch

from bertmill.cli import main
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus
from tests.trainer.states import run_state
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.reading import latest_verified
from trainer.checkpoint.store import CheckpointStore


@pytest.fixture
def corpus(tmp_path: Path) -> SmallCorpus:
    return build_small_corpus(tmp_path / "corpus")


def test_verify_says_sound_or_names_what_is_wrong(
    corpus: SmallCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(corpus.folder)]) == 0
    assert "sound (12 shards" in capsys.readouterr().out
    corpus.shard(0).unlink()
    assert main(["verify", str(corpus.manifest_path)]) == 1
    out = capsys.readouterr().out
    assert f"{corpus.shard(0)}: is missing" in out
    assert "problems (12 shards" in out


def test_verify_without_a_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "no such manifest" in capsys.readouterr().err


def test_inspect_shows_rows(corpus: SmallCorpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(corpus.folder), "--rows", "2", "--lang", "fi"]) == 0
    out = capsys.readouterr().out
    assert out.count("  A  [CLS]") == 2
    assert " · fi · " in out
    assert main(["inspect", str(corpus.folder), "--shard", "data/other.parquet"]) == 2


def test_verify_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    store = CheckpointStore(run)
    store.acquire_lease()
    state = TrainingState({"weight": torch.ones(3)}, {"state": {}, "param_groups": []}, run_state(7))
    store.save_async(7, state)
    store.close()
    found = latest_verified(run)
    assert found is not None
    assert main(["verify", found.uri]) == 0
    assert "sound (step 7)" in capsys.readouterr().out
    weights = next(Path(found.uri).glob("model*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    assert main(["verify", found.uri]) == 2
    assert weights.name in capsys.readouterr().err
