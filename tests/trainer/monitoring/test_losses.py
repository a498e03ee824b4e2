"""Stored losses: the trainer still computes the losses in the file.

    python -m pytest tests/trainer/monitoring/test_losses.py --write-losses

This command rewrites the file. Such a commit must explain why the numbers changed.
"""

import json
from pathlib import Path

import pytest

from bertmill.cli import main
from schemas.errors import ConfigError
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.monitoring.losses import compare_losses
from trainer.run.loop import train

GOLDEN = Path(__file__).parent / "golden_losses.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two lengths, dynamic masks, dropout, warm-up of rate and batch, every step logged."""
    folder = tmp_path_factory.mktemp("losses")
    manifest = write_corpus(folder / "corpus", lengths=(32, 64), passes=2)
    phases = [
        phase(32, 24, 256, steps=24, batch_warmup={"start": 8, "steps": 6, "stairs": 3}),
        phase(64, 10, 256, steps=6, learning_rate=2e-3),
    ]
    config = train_config(
        folder,
        manifest,
        phases=phases,
        schedule={"shape": "cosine", "warmup": 4},
        data={"manifest": str(manifest), "masking": "dynamic"},
    )
    parsed = TrainConfig.model_validate(config)
    train(parsed, single_rank())
    return parsed.run.uri


def test_the_losses_are_those_that_were_kept(run: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-losses"):
        assert main(["losses", run, "--write", str(GOLDEN)]) == 0
    assert len(json.loads(GOLDEN.read_bytes())["losses"]) == 30
    assert compare_losses(run, str(GOLDEN)) == []


def test_the_command_compares_and_says_where_runs_part(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["losses", run, "--against", str(GOLDEN)]) == 0
    assert capsys.readouterr().out == "the losses are equal\n"
    changed = json.loads(GOLDEN.read_bytes())
    changed["losses"]["7"] *= 1.001
    del changed["losses"]["30"]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    assert main(["losses", run, "--against", str(other)]) == 1
    output = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in output] == ["step 7", "step 30", "2 steps differ"]
    assert main(["losses", run, "--against", str(other), "--tolerance", "0.01"]) == 1
    assert "expected None" in capsys.readouterr().out


def test_kept_losses_are_written_and_printed(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "losses.json"
    assert main(["losses", run, "--write", str(file)]) == 0
    assert compare_losses(run, str(file), tolerance=0.0) == []
    capsys.readouterr()
    assert main(["losses", run]) == 0
    steps = [int(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
    assert steps == list(range(1, 31))


def test_a_file_of_something_else_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; write it with bertmill losses"):
        compare_losses(run, str(tmp_path / "none.json"))
    for text in ("", "[]", '{"losses": {"a": 1}}', '{"losses": 3}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match="not a file that bertmill losses --write"):
            compare_losses(run, str(tmp_path / "bad.json"))
