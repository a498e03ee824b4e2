"""A corpus as a torch dataset: the trainer's own batches, for any ranks and workers, from any state."""

import multiprocessing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

from bertmill.dataset import CorpusDataset, PretrainingCollator, load_corpus
from schemas.errors import ConfigError
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.data.batches import BatchReader, Stream
from trainer.data.corpus import open_corpus
from trainer.data.dynamic_masks import dynamic_masks
from trainer.data.rows import ShardRows
from trainer.startup.setup import plan_of

SEED = 12345


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(
        tmp_path_factory.mktemp("corpus"), lengths=(32, 48), passes=2, validation_rows=(20, 9)
    )


def batches(dataset: CorpusDataset, size: int, count: int | None, workers: int = 0) -> list[list[int]]:
    """The row ids of each batch of a DataLoader."""
    loader = DataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=list)
    return [[int(row["row_id"]) for row in batch] for batch in islice(loader, count)]


def trained(manifest: Path, global_batch: int, steps: int) -> list[list[int]]:
    """The row ids of each global batch of a training run on one rank."""
    config = train_config(manifest.parent, manifest, phases=[phase(32, global_batch, 4096, steps=steps)])
    corpus = open_corpus(str(manifest))
    plan = plan_of(TrainConfig.model_validate({**config, "seed": SEED}), corpus)
    rows = ShardRows(corpus.passes(32), corpus.limits(32))
    with BatchReader(plan, {32: Stream(plan.orders[32], rows)}, 0, 1) as reader:
        return [sorted(reader.read(step).row_ids.tolist()) for step in range(steps)]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (1, 2), (4, 1)])
def test_global_batches_are_those_of_the_trainer(manifest: Path, world_size: int, workers: int) -> None:
    size, steps = 16 // world_size, 12
    ranks = [
        batches(
            load_corpus(manifest, batch_size=size, max_seq_length=32, rank=rank, world_size=world_size),
            size, steps, workers,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    together = [sorted(chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert together == trained(manifest, 16, steps)
    assert all(len(batch) == size for batches_of_rank in ranks for batch in batches_of_rank)


def test_the_state_is_one_integer_and_resumes_anywhere(manifest: Path) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "max_seq_length": 32}
    whole = batches(load_corpus(manifest, **arguments), 8, 10)
    dataset = load_corpus(manifest, **arguments)
    assert batches(dataset, 8, 4) == whole[:4]
    assert dataset.state_dict() == dataset.state_after(4) == {"rows": 32}
    resumed = load_corpus(manifest, **arguments)
    resumed.load_state_dict(dataset.state_dict())
    for workers in (0, 3):
        assert batches(resumed, 8, 6, workers) == whole[4:]
    # Twice the ranks: together they continue with the same rows.
    halves = []
    for rank in range(2):
        half = load_corpus(manifest, batch_size=4, max_seq_length=32, rank=rank, world_size=2)
        half.load_state_dict({"rows": 32})
        halves.append(batches(half, 4, 6))
    assert [sorted(chain(*parts)) for parts in zip(*halves, strict=True)] == [sorted(b) for b in whole[4:]]
    other = load_corpus(manifest, batch_size=24, max_seq_length=32)
    other.load_state_dict({"rows": 8})
    assert sorted(batches(other, 24, 1)[0]) == sorted(chain(*whole[1:4]))


def test_a_worker_resumes_from_its_own_state(manifest: Path) -> None:
    """Each worker's copy saves and loads its own state, as in torchdata's StatefulDataLoader."""
    dataset = load_corpus(manifest, batch_size=4, max_seq_length=32)
    whole = batches(dataset, 4, 8)
    info = torch.utils.data._utils.worker.WorkerInfo(id=1, num_workers=2, seed=0, dataset=dataset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertmill.dataset.get_worker_info", lambda: info)
        first = [int(row["row_id"]) for row in islice(dataset, 8)]
        assert first == whole[1] + whole[3]
        dataset.load_state_dict(dataset.state_dict())
        assert [int(row["row_id"]) for row in islice(dataset, 8)] == whole[5] + whole[7]


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_epoch_ends_after_every_row(manifest: Path, world_size: int) -> None:
    rows = open_corpus(str(manifest)).order(32, 1).epoch_start(1)
    ranks = [
        load_corpus(manifest, batch_size=7, max_seq_length=32, epochs=1, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    read = [[int(row["row_id"]) for row in rank] for rank in ranks]
    assert [len(ids) for ids in read] == [len(rank) for rank in ranks]
    assert sorted(chain(*read)) == list(range(rows))
    assert len({-(-len(ids) // 7) for ids in read}) == 1
    assert ranks[0].rows_before(1) == rows
    # Another iteration starts at the loaded state again.
    assert [int(row["row_id"]) for row in ranks[0]] == read[0]


def test_rows_beyond_a_multiple_of_the_ranks_are_dropped_and_reported(
    manifest: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = load_corpus(manifest, batch_size=1, max_seq_length=32).rows_before(1)
    world_size = rows - 1
    dataset = load_corpus(manifest, batch_size=1, max_seq_length=32, epochs=1, world_size=world_size)
    assert len(list(dataset)) == len(dataset) == 1
    assert f"the last 1 rows are too few for {world_size} ranks" in caplog.text


def test_an_endless_dataset_has_no_length(manifest: Path) -> None:
    with pytest.raises(TypeError, match="endless"):
        len(load_corpus(manifest, batch_size=2, max_seq_length=32))


def test_rows_are_those_of_the_shards(manifest: Path) -> None:
    shards = [place.uri for shards in open_corpus(str(manifest)).passes(32) for place in shards]
    stored = pa.concat_tables(pq.read_table(uri) for uri in shards).to_pylist()
    for row in load_corpus(manifest, batch_size=4, max_seq_length=32, epochs=2):
        expected = stored[int(row["row_id"])]
        length = expected["length"]
        assert row["input_ids"].tolist() == expected["input_ids"]
        assert row["token_type_ids"].tolist() == [
            int(position >= expected["segment_a_length"]) for position in range(length)
        ]
        masked = dict(zip(expected["masked_positions"], expected["masked_ids"], strict=True))
        assert row["labels"].tolist() == [masked.get(position, -100) for position in range(length)]
        assert int(row["next_sentence_label"]) == expected["next_sentence_label"]


@pytest.mark.parametrize(("objective", "name"), [("sop", "sentence_order_label"), ("none", None)])
def test_other_objectives_have_their_own_label(tmp_path: Path, objective: str, name: str | None) -> None:
    dataset = load_corpus(write_corpus(tmp_path, objective=objective), batch_size=4)
    batch = dataset.collator()(list(islice(dataset, 4)))
    columns = {"input_ids", "token_type_ids", "labels", "attention_mask"}
    assert batch.keys() == columns | ({name} if name else set())


def test_dynamic_masks_are_those_of_the_trainer(tmp_path: Path) -> None:
    from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer

    manifest = write_corpus_with_tokenizer(tmp_path, 120)
    corpus = open_corpus(str(manifest))
    config = train_config(tmp_path, manifest, phases=[phase(32, 8, 4096, steps=2)])
    plan = plan_of(TrainConfig.model_validate({**config, "seed": SEED}), corpus)
    stream = Stream(
        plan.orders[32], ShardRows(corpus.passes(32), corpus.limits(32)), dynamic_masks(corpus, 32, SEED)
    )
    with BatchReader(plan, {32: stream}, 0, 1) as reader:
        (batch,) = reader.read(1).micro_batches
    expected = {}
    bounds = batch.cu_seqlens.tolist()
    for number, row_id in enumerate(batch.sample_ids.tolist()):
        expected[row_id] = batch.input_ids[bounds[number] : bounds[number + 1]].tolist()
    dataset = load_corpus(manifest, batch_size=8, max_seq_length=32, masking="dynamic")
    rows = list(islice(dataset, 16))[8:]
    assert {int(row["row_id"]): row["input_ids"].tolist() for row in rows} == expected


def test_the_collator_pads_for_transformers(manifest: Path) -> None:
    dataset = load_corpus(manifest, batch_size=6, max_seq_length=32)
    rows = list(islice(dataset, 6))
    batch = dataset.collator(pad_to_multiple_of=8)(rows)
    width = batch["input_ids"].shape[1]
    assert width % 8 == 0
    for number, row in enumerate(rows):
        length = len(row["input_ids"])
        assert batch["input_ids"][number, :length].equal(row["input_ids"])
        assert batch["input_ids"][number, length:].eq(0).all()
        assert batch["labels"][number, length:].eq(-100).all()
        assert batch["attention_mask"][number].tolist() == [1] * length + [0] * (width - length)
    config = transformers.BertConfig(
        vocab_size=int(open_corpus(str(manifest)).vocab_size), hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    loss = transformers.BertForPreTraining(config)(**batch).loss
    assert 0 < loss.item() < 20
    masked_lm = PretrainingCollator(sentence_labels=False)(rows)
    assert transformers.BertForMaskedLM(config)(**masked_lm).loss.item() > 0
    assert dataset.collator(pad_to=40)(rows)["input_ids"].shape == (6, 40)
    with pytest.raises(ConfigError, match="pad_to: 3 is less than a row of"):
        dataset.collator(pad_to=3)(rows)


def test_validation_rows_and_spawned_workers(manifest: Path) -> None:
    dataset = load_corpus(manifest, batch_size=4, max_seq_length=32, split="validation", epochs=1)
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, collate_fn=dataset.collator(),
        multiprocessing_context=multiprocessing.get_context("spawn"),
    )  # fmt: skip
    shapes = [len(batch["input_ids"]) for batch in loader]
    assert sum(shapes) == len(dataset) == 29


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "max_seq_length: choose one of"),
        ({"max_seq_length": 999}, "has no rows of 999; it has 32, 48"),
        ({"max_seq_length": 32, "batch_size": 0}, "batch_size: 0 must be at least 1"),
        ({"max_seq_length": 32, "epochs": 0}, "epochs: 0 must be at least 1"),
        ({"max_seq_length": 32, "rank": 2, "world_size": 2}, "rank: 2 must be from 0 to 1"),
        ({"max_seq_length": 32, "split": "test"}, "has no rows of split 'test'"),
        ({"max_seq_length": 32, "masking": "none"}, "masking: 'none' must be static or dynamic"),
    ],
)
def test_wrong_arguments_are_named(manifest: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_corpus(manifest, **{"batch_size": 2, **arguments})
    assert message in str(refused.value)
