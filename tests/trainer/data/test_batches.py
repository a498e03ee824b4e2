"""The rows of each rank in each step: every row once, equal numbers of micro-batches, balanced tokens."""

import threading
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CorpusError
from tests.support.manifests import set_entry, write_manifest
from tests.trainer.synthetic import invented_rows, manifest, write_corpus, write_shard
from trainer.data.batches import BatchReader, FixedShape, Stream, assign_rows, rank_bounds
from trainer.data.corpus import open_corpus
from trainer.data.packing import filler
from trainer.data.rows import ShardRows
from trainer.data.shared_cache import SharedCache
from trainer.data.step_plan import TrainingPlan
from trainer.model.microbatch import NO_SAMPLE
from trainer.recipe_config import Phase

LENGTHS = st.lists(st.integers(1, 128), max_size=60).map(lambda lengths: np.array(lengths, dtype=np.int64))
WORLDS = st.integers(1, 5)


@given(LENGTHS, WORLDS)
@settings(max_examples=150, deadline=None)
def test_ranks_get_runs_of_nearly_equal_tokens(lengths: Any, world: int) -> None:
    bounds = rank_bounds(lengths, world)
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    assert (np.diff(bounds) >= 0).all()
    ends = np.concatenate([[0], np.cumsum(lengths)])
    longest = lengths.max(initial=0)
    wanted = np.arange(world + 1) * ends[-1] / world
    assert (np.abs(ends[bounds] - wanted) <= longest / 2 + 1e-6).all()


@given(LENGTHS, WORLDS, st.integers(128, 700))
@settings(max_examples=150, deadline=None)
def test_no_micro_batch_exceeds_the_budget_and_every_row_has_one(
    lengths: Any, world: int, budget: int
) -> None:
    shares = assign_rows(lengths, world, budget)
    assert shares.micro_batches >= 1
    for rank in range(world):
        mine = slice(shares.bounds[rank], shares.bounds[rank + 1])
        assert ((shares.bins[mine] >= 0) & (shares.bins[mine] < shares.micro_batches)).all()
        loads = np.bincount(shares.bins[mine], weights=lengths[mine], minlength=shares.micro_batches)
        assert loads.max(initial=0) <= budget


@given(LENGTHS, WORLDS, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_no_micro_batch_has_more_rows_than_allowed(lengths: Any, world: int, most_rows: int) -> None:
    shares = assign_rows(lengths, world, 700, most_rows)
    rank = np.searchsorted(shares.bounds, np.arange(len(lengths)), side="right") - 1
    assert np.bincount(rank * shares.micro_batches + shares.bins, minlength=1).max() <= most_rows


@given(st.integers(1, 40), WORLDS)
@settings(max_examples=30, deadline=None)
def test_packing_is_tight_when_rows_are_many(rows: Any, world: int) -> None:
    lengths = np.random.default_rng(rows).integers(20, 129, size=world * 64 * rows)
    shares = assign_rows(lengths, world, 4096)
    fewest = -(-int(lengths.sum()) // (4096 * world))
    assert shares.micro_batches <= fewest + 1


def phase(length: int = 32, batch: int = 12, budget: int = 128, **fields: Any) -> Phase:
    fields = fields or {"epochs": 2}
    return Phase(
        max_seq_length=length, global_batch=batch, micro_batch_tokens=budget, learning_rate=1e-3, **fields
    )


def streams(path: Path, seed: int = 7, window: int = 1, shape: Any = None) -> dict[int, Stream]:
    corpus = open_corpus(str(path))
    return {
        length: Stream(
            corpus.order(length, seed, window),
            ShardRows(corpus.passes(length), corpus.limits(length)),
            shape=shape,
        )
        for length in corpus.lengths()
    }


def readers(path: Path, phases: Any, world: int, shape: Any = None, **options: Any) -> Any:
    parts = streams(path, shape=shape)
    plan = TrainingPlan(phases, {length: stream.order for length, stream in parts.items()})
    return plan, [BatchReader(plan, parts, rank, world, **options) for rank in range(world)]


def steps_of(path: Path, phases: Any, world: int, **options: Any) -> Any:
    """For each step: the micro-batches of every rank."""
    plan, ranks = readers(path, phases, world, **options)
    steps = [[reader.read(step) for reader in ranks] for step in range(plan.total_steps)]
    for reader in ranks:
        reader.close()
    return steps


def rows_of(batch: Any) -> Any:
    """row id -> (ids, types, positions, targets, label, lang) of the real rows of a micro-batch."""
    found = {}
    for i, sample in enumerate(batch.sample_ids.tolist()):
        if sample == NO_SAMPLE:
            continue
        start, end = batch.cu_seqlens[i].item(), batch.cu_seqlens[i + 1].item()
        inside = (batch.masked_index >= start) & (batch.masked_index < end) & (batch.masked_ids >= 0)
        targets = list(
            zip((batch.masked_index[inside] - start).tolist(), batch.masked_ids[inside].tolist(), strict=True)
        )
        found[sample] = (
            batch.input_ids[start:end].tolist(),
            batch.token_type_ids[start:end].tolist(),
            batch.position_ids[start:end].tolist(),
            targets,
            batch.next_sentence_labels[i].item(),
            batch.lang_ids[i].item(),
        )
    return found


def test_the_rows_that_come_out_are_the_rows_of_the_shards(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, passes=2)
    table = [
        row
        for number in (0, 1)
        for shard in sorted((tmp_path / f"train-32-{number}").iterdir())
        for row in pq.read_table(shard).to_pylist()
    ]
    seen = {}
    for ranks in steps_of(path, [phase()], 2):
        for rank in ranks:
            for batch in rank.micro_batches:
                batch.check(200, 32)
                assert batch.tokens <= 128
                seen.update(rows_of(batch))
    assert sorted(seen) == list(range(200))
    for number, (ids, types, positions, targets, label, lang) in seen.items():
        row = table[number]
        assert ids == row["input_ids"]
        assert types == [int(i >= row["segment_a_length"]) for i in range(row["length"])]
        assert positions == list(range(row["length"]))
        assert targets == list(zip(row["masked_positions"], row["masked_ids"], strict=True))
        assert label == row["next_sentence_label"]
        assert ("de", "el", "en")[lang] == row["lang"]


def test_global_batches_are_the_same_for_every_world_size(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, shard_rows=(65, 64, 0, 63))
    runs = {world: steps_of(path, [phase(batch=25)], world) for world in (1, 2, 3, 4)}
    reference = [set().union(*(rank.row_ids.tolist() for rank in step)) for step in runs[1]]
    assert sum(map(len, reference)) == 2 * 192
    for world, steps in runs.items():
        for step, expected in zip(steps, reference, strict=True):
            ids = [sample for rank in step for sample in rank.row_ids.tolist()]
            assert len(ids) == len(set(ids))
            assert set(ids) == expected
            assert len({len(rank.micro_batches) for rank in step}) == 1, world
            assert len({rank.global_tokens for rank in step}) == 1
            assert sum(rank.tokens for rank in step) == step[0].global_tokens


def test_an_epoch_has_every_row_once_and_the_last_batch_is_short(tmp_path: Path) -> None:  # trainer-014
    path = write_corpus(tmp_path, shard_rows=(65, 64, 63))
    for world in (2, 4):
        steps = steps_of(path, [phase(batch=50, epochs=1)], world)
        ids = [i for step in steps for rank in step for i in rank.row_ids.tolist()]
        assert sorted(ids) == list(range(192))
        assert [step[0].plan.rows for step in steps] == [50, 50, 50, 42]


@pytest.mark.parametrize(
    ("shard_rows", "world", "batch"),
    [
        pytest.param((10, 20), 2, 8, id="pipeline-017"),
        pytest.param((40,), 4, 12, id="pipeline-018"),
        pytest.param((100, 100, 100, 100), 2, 32, id="pipeline-019"),
        pytest.param((33,) * 60, 2, 32, id="pipeline-023"),
    ],
)
def test_steps_are_full_but_the_last_however_the_rows_lie(
    tmp_path: Path, shard_rows: Any, world: int, batch: int
) -> None:
    path = write_corpus(tmp_path, shard_rows=shard_rows, group_rows=33)
    steps = steps_of(path, [phase(batch=batch, epochs=1)], world)
    rows = sum(shard_rows)
    assert [step[0].plan.rows for step in steps] == [batch] * (rows // batch) + [rows % batch] * (
        rows % batch > 0
    )
    assert all(len({len(rank.micro_batches) for rank in step}) == 1 for step in steps)
    assert sorted(i for step in steps for rank in step for i in rank.row_ids.tolist()) == list(range(rows))


def test_a_resume_at_the_border_of_an_epoch_begins_the_next(tmp_path: Path) -> None:
    """Case pipeline-030: at step N and N + 1 of an epoch of N steps."""
    path = write_corpus(tmp_path, shard_rows=(40, 32))
    whole = steps_of(path, [phase(batch=12, epochs=2)], 1)
    assert len(whole) == 12
    for step in (6, 7):
        _, (reader,) = readers(path, [phase(batch=12, epochs=2)], 1)
        with reader:
            assert np.array_equal(reader.read(step).row_ids, whole[step][0].row_ids)


def test_the_position_counts_what_was_used_not_what_was_read_ahead(tmp_path: Path) -> None:  # trainer-004
    path = write_corpus(tmp_path)
    plain = steps_of(path, [phase()], 1, threads=1, ahead=0)
    plan, (reader,) = readers(path, [phase()], 1, threads=4, ahead=8)
    with reader:
        for step in (0, 1, 2, 9, 3, 4, plan.total_steps - 1):
            assert np.array_equal(reader.read(step).row_ids, plain[step][0].row_ids)


def test_a_fresh_reader_continues_with_the_same_micro_batches(tmp_path: Path) -> None:  # trainer-005
    path = write_corpus(tmp_path)
    whole = steps_of(path, [phase()], 2)
    _, ranks = readers(path, [phase()], 2)
    for rank, reader in enumerate(ranks):
        with reader:
            for step in (5, 6):
                for one, other in zip(
                    reader.read(step).micro_batches, whole[step][rank].micro_batches, strict=True
                ):
                    assert torch.equal(one.input_ids, other.input_ids)
                    assert torch.equal(one.sample_ids, other.sample_ids)


def test_both_lengths_and_a_second_phase_of_the_first(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, lengths=(32, 64))
    phases = [phase(32, steps=4), phase(64, steps=3), phase(32, steps=3)]
    steps = steps_of(path, phases, 2)
    first = [i for step in steps[:4] + steps[7:] for rank in step for i in rank.row_ids.tolist()]
    assert len(first) == len(set(first)) == 84
    assert [step[0].micro_batches[0].max_seqlen for step in steps] == [32] * 4 + [64] * 3 + [32] * 3


def test_two_epochs_without_other_order_give_equal_inputs(tmp_path: Path) -> None:  # trainer-021
    """A step gets arrays that the cache does not share, so it may change them."""
    path = write_corpus(tmp_path, shard_rows=(24,), group_rows=24)
    seen = []
    _, (reader,) = readers(path, [phase(batch=24, budget=1024, epochs=3)], 1, ahead=0)
    with reader:
        for step in range(3):
            (batch,) = reader.read(step).micro_batches
            seen.append(rows_of(batch))
            for name in ("input_ids", "masked_ids", "token_type_ids", "masked_index", "lang_ids"):
                getattr(batch, name).fill_(0)
    assert seen[0] == seen[1] == seen[2]


def test_more_ranks_than_rows_train_fillers(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, shard_rows=(3,))
    (step,) = steps_of(path, [phase(batch=3, epochs=1)], 5)
    assert sorted(i for rank in step for i in rank.row_ids.tolist()) == [0, 1, 2]
    assert len({len(rank.micro_batches) for rank in step}) == 1
    idle = [rank for rank in step if not rank.row_ids.size]
    assert idle
    assert all(rank.tokens == 0 and rank.masked_tokens == 0 and rank.pairs == 0 for rank in idle)
    filler(32).check(200, 32)


@pytest.mark.parametrize("grain", [None, 16])
def test_fixed_shapes_hold_the_same_rows(tmp_path: Path, grain: int | None) -> None:
    path = write_corpus(tmp_path, shard_rows=(65, 64, 63))
    shape = FixedShape(rows_per_token=1.25 / 20, masked_per_token=0.15, token_grain=grain)
    plain = steps_of(path, [phase(batch=25)], 2)
    plan, ranks = readers(path, [phase(batch=25)], 2, shape=shape)
    shapes = set()
    for step in range(plan.total_steps):
        for rank, reader in enumerate(ranks):
            batches = reader.read(step)
            found, expected = dict[int, Any](), dict[int, Any]()
            for batch in batches.micro_batches:
                batch.check(200, 32)
                found |= rows_of(batch)
                shapes.add((batch.tokens, batch.sequences, batch.masked_ids.shape[0]))
            for batch in plain[step][rank].micro_batches:
                expected |= rows_of(batch)
            assert found == expected
            assert batches.tokens == sum(len(row[0]) for row in found.values())
    if grain is None:
        assert len(shapes) == 1
    else:
        # The fewest multiples of the grain for tokens, and one shape of the rest for the compiler.
        assert len(shapes) > 1
        assert all(tokens % grain == 0 for tokens, _, _ in shapes)
        assert len({(sequences, masked) for _, sequences, masked in shapes}) == 1
    for reader in ranks:
        reader.close()


def test_more_targets_than_a_fixed_shape_has_room_for_are_refused(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    _, (reader,) = readers(path, [phase()], 1, shape=FixedShape(0.03, 0.01))
    with (
        reader,
        pytest.raises(CorpusError, match="more than the 6 that the corpus' masking rule"),
    ):
        reader.read(0)


def test_a_corrupt_row_is_named_by_the_step_that_reads_it(tmp_path: Path) -> None:
    columns = invented_rows(20, 32, 200, "nsp", 1)
    columns["input_ids"][13][4] = 250
    entry = write_shard(tmp_path / "train-32-0" / "shard-00000.parquet", columns, 8)
    sets = [set_entry("train-32-0", 32, 0, [entry])]
    path = tmp_path / "manifest.json"
    write_manifest(path, manifest(sets, 200, "nsp"))
    plan, (reader,) = readers(path, [phase(batch=20, epochs=1)], 1)
    with (
        reader,
        pytest.raises(CorpusError, match=r"shard-00000.parquet: row group 1 row 5: input_ids 250 is outside"),
    ):
        reader.read(plan.total_steps - 1)


def test_the_cache_is_bounded_and_loads_once() -> None:
    cache = SharedCache(limit=10, cost=len)
    assert cache.get("a", lambda: "aaaa") == cache.get("a", lambda: "other")
    for key in "bcdef":
        cache.get(key, partial(mul, key, 4))
    assert cache.loads == 6
    assert cache.get("f", lambda: "new") == "ffff"
    assert cache.get("a", lambda: "new") == "new"


def test_a_failed_load_is_raised_and_tried_again() -> None:
    cache = SharedCache(limit=10, cost=len)
    with pytest.raises(CorpusError):
        cache.get("a", lambda: (_ for _ in ()).throw(CorpusError("broken")))
    assert cache.get("a", lambda: "aa") == "aa"


def test_threads_that_want_the_same_value_wait_for_one_load() -> None:
    cache, started, release = SharedCache(limit=10, cost=len), threading.Event(), threading.Event()

    def load() -> Any:
        started.set()
        assert release.wait(10)
        return "value"

    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a", load))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    release.set()
    for thread in threads:
        thread.join()
    assert found == ["value"] * 3
    assert cache.loads == 1
