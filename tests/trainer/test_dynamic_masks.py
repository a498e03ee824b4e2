"""Fresh masks from static shards: keyed by seed, epoch and row, and nothing else."""

from contextlib import ExitStack

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.errors import CorpusError
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import SPECIAL_IDS, invented_rows, manifest, set_entry, write_corpus, write_shard
from tests.trainer.test_batches import rows_of
from trainer.config import TrainConfig
from trainer.hooks import Hooks
from trainer.loop import train
from trainer.prepare import open_data
from trainer.ranks import Ranks, alone


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def rows_by_epoch(folder, corpus, world=1, epochs=2, seed=12345, **data):
    """epoch -> row id -> what the model gets of the row."""
    config = TrainConfig.model_validate(
        train_config(
            folder,
            corpus,
            data={"manifest": str(corpus), "masking": "dynamic", "check_shards": False, **data},
            phases=[phase(32, 10, 128, epochs=epochs)],
            seed=seed,
        )
    )
    found = {}
    with ExitStack() as cleanup:
        for rank in range(world):
            ranks = Ranks(rank, world, alone().device, None)
            opened = open_data(config, ranks, cleanup)
            for step in range(opened.plan.total_steps):
                batches = opened.reader.read(step)
                assert batches.masked == sum(len(batch.masked_ids) for batch in batches.micro_batches)
                for batch in batches.micro_batches:
                    batch.check(200, 32)
                    found.setdefault(batches.epoch, {}).update(rows_of(batch))
    return found


def original(row):
    ids = list(row[0])
    for place, piece in row[3]:
        ids[place] = piece
    return ids


def test_the_text_stays_and_the_masks_change_with_the_epoch(tmp_path, corpus):
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


def test_masks_do_not_depend_on_ranks_threads_or_batches(tmp_path, corpus):
    reference = rows_by_epoch(tmp_path, corpus)
    assert rows_by_epoch(tmp_path, corpus, world=2) == reference
    assert rows_by_epoch(tmp_path, corpus, world=3, read_threads=4, read_ahead=8) == reference
    assert rows_by_epoch(tmp_path, corpus, seed=6) != reference


def test_equal_texts_under_two_ids_get_different_masks(tmp_path):  # trainer-010
    columns = invented_rows(1, 32, 200, "nsp", 1, full=True)
    columns = {name: values * 20 for name, values in columns.items()}
    path = write_corpus(tmp_path / "corpus")
    entry = write_shard(tmp_path / "corpus" / "train-32-0" / "shard-00000.parquet", columns, 16)
    from schemas.manifest import dump_manifest

    path.write_bytes(dump_manifest(manifest([set_entry("train-32-0", 32, 0, [entry])], 200, "nsp")))
    rows = rows_by_epoch(tmp_path, path, epochs=1)[0]
    assert len({tuple(row[3]) for row in rows.values()}) > 15


def test_a_run_with_dynamic_masks_resumes_exactly(tmp_path, corpus):  # trainer-009
    def config(name):
        data = {"manifest": str(corpus), "masking": "dynamic"}
        return TrainConfig.model_validate(train_config(tmp_path / name, corpus, data=data))

    train(config("whole"), alone())
    asked = iter(range(100))
    train(config("parts"), alone(), Hooks(stop_wanted=lambda: next(asked) >= 6))
    train(config("parts"), alone())
    whole, parts = (History(tmp_path / name / "runs" / "run") for name in ("whole", "parts"))
    assert len(parts.events("started")) == 2
    assert whole.losses() == parts.losses()


def test_masks_keep_to_the_rule(tmp_path):  # trainer-035
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


def test_another_or_a_missing_vocabulary_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    vocabulary = tmp_path / "corpus" / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w7\n", "x7\n"))
    with pytest.raises(CorpusError, match=r"vocab.txt: not the vocabulary of the manifest"):
        rows_by_epoch(tmp_path, corpus)
    vocabulary.unlink()
    with pytest.raises(CorpusError, match=r"vocab.txt: the vocabulary is missing"):
        rows_by_epoch(tmp_path, corpus)
