"""New masks from static shards, keyed only by seed, epoch and row."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.errors import CorpusError
from tests.support.manifests import set_entry, write_manifest
from tests.trainer.data.test_batches import rows_of
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import SPECIAL_IDS, invented_rows, manifest, write_corpus, write_shard
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks, single_rank
from trainer.hooks import Hooks
from trainer.run.loop import train
from trainer.startup.setup import open_data


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def rows_by_epoch(
    folder: Path, corpus: Path, world: int = 1, epochs: int = 2, seed: int = 12345, **data: Any
) -> Any:
    """Epoch -> row id -> the model's input for the row."""
    config = TrainConfig.model_validate(
        train_config(
            folder,
            corpus,
            data={"manifest": str(corpus), "masking": "dynamic", "check_shards": False, **data},
            phases=[phase(32, 10, 128, epochs=epochs)],
            seed=seed,
        )
    )
    found: dict[int, dict[int, Any]] = {}
    with ExitStack() as cleanup:
        for rank in range(world):
            ranks = Ranks(rank, world, single_rank().device, None)
            opened = open_data(config, ranks, cleanup)
            for step in range(opened.plan.total_steps):
                batches = opened.reader.read(step)
                assert batches.masked_tokens == sum(len(batch.masked_ids) for batch in batches.micro_batches)
                for batch in batches.micro_batches:
                    batch.check(200, 32)
                    found.setdefault(batches.epoch, {}).update(rows_of(batch))
    return found


def original(row: Any) -> Any:
    ids = list(row[0])
    for place, piece in row[3]:
        ids[place] = piece
    return ids


def test_the_text_stays_and_the_masks_change_with_the_epoch(tmp_path: Path, corpus: Path) -> None:
    found = rows_by_epoch(tmp_path, corpus)
    shards = sorted((corpus.parent / "train-32-0").iterdir())
    texts = []
    for row in (row for shard in shards for row in pq.read_table(shard).to_pylist()):
        ids = row["input_ids"]
        for place, piece in zip(row["masked_positions"], row["masked_ids"], strict=True):
            ids[place] = piece
        texts.append(ids)
    assert sorted(found[0]) == sorted(found[1]) == list(range(100))
    for epoch in (0, 1):
        assert all(original(found[epoch][row]) == texts[row] for row in range(100))
    assert sum(found[0][row][3] != found[1][row][3] for row in range(100)) > 90


def test_masks_do_not_depend_on_ranks_threads_or_batches(tmp_path: Path, corpus: Path) -> None:
    reference = rows_by_epoch(tmp_path, corpus)
    assert rows_by_epoch(tmp_path, corpus, world=2) == reference
    assert rows_by_epoch(tmp_path, corpus, world=3, read_threads=4, read_ahead=8) == reference
    assert rows_by_epoch(tmp_path, corpus, seed=6) != reference


def test_equal_texts_under_two_ids_get_different_masks(tmp_path: Path) -> None:  # trainer-010
    columns = invented_rows(1, 32, 200, "nsp", 1, full=True)
    columns = {name: values * 20 for name, values in columns.items()}
    path = write_corpus(tmp_path / "corpus")
    entry = write_shard(tmp_path / "corpus" / "train-32-0" / "shard-00000.parquet", columns, 16)
    write_manifest(path, manifest([set_entry("train-32-0", 32, 0, [entry])], 200, "nsp"))
    rows = rows_by_epoch(tmp_path, path, epochs=1)[0]
    assert len({tuple(row[3]) for row in rows.values()}) > 15


def test_a_run_with_dynamic_masks_resumes_exactly(tmp_path: Path, corpus: Path) -> None:  # trainer-009
    def config(name: str) -> TrainConfig:
        data = {"manifest": str(corpus), "masking": "dynamic"}
        return TrainConfig.model_validate(train_config(tmp_path / name, corpus, data=data))

    train(config("whole"), single_rank())
    asked = iter(range(100))
    train(config("parts"), single_rank(), Hooks(stop_requested=lambda: next(asked) >= 6))
    train(config("parts"), single_rank())
    whole, parts = (History(tmp_path / name / "runs" / "run") for name in ("whole", "parts"))
    assert len(parts.events("started")) == 2
    assert whole.losses() == parts.losses()


def test_masks_keep_to_the_rule(tmp_path: Path) -> None:  # trainer-035
    corpus = write_corpus(tmp_path / "corpus", shard_rows=(600,), full=True)
    rows = rows_by_epoch(tmp_path, corpus, epochs=1)[0]
    targets = [(row[0][place], piece) for row in rows.values() for place, piece in row[3]]
    assert not {piece for _, piece in targets} & {SPECIAL_IDS[name] for name in ("[CLS]", "[SEP]", "[PAD]")}
    masked = np.mean([seen == SPECIAL_IDS["[MASK]"] for seen, _ in targets])
    kept = np.mean([seen == piece for seen, piece in targets])
    assert abs(masked - 0.8) < 0.03
    assert abs(kept - 0.1) < 0.03
    assert all(5 <= seen < 200 for seen, _ in targets if seen != SPECIAL_IDS["[MASK]"])
    assert all(len(row[3]) <= 5 for row in rows.values())


def test_another_or_a_missing_vocabulary_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    vocabulary = tmp_path / "corpus" / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w7\n", "x7\n"))
    with pytest.raises(CorpusError, match=r"vocab.txt: not the vocabulary of the manifest"):
        rows_by_epoch(tmp_path, corpus)
    vocabulary.unlink()
    with pytest.raises(CorpusError, match=r"vocab.txt: no such file; dynamic masking needs the vocabulary"):
        rows_by_epoch(tmp_path, corpus)
