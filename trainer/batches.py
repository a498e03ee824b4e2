"""Global batches as micro-batches: what each rank trains in each step, agreed without a word.

Every rank knows the lengths of all rows of a global batch from the ``length`` column, and computes the
same plan from them: the batch, in its order, is cut into one run of rows for each rank, of equal tokens
as nearly as rows allow; each rank deals its rows to the same number of micro-batches, none of which
exceeds the token budget. A rank or micro-batch that got no row trains a filler that counts for nothing,
so that all ranks make the same collectives. Nothing is carried over from one step to the next: there
is no buffer to save or to lose.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from schemas.shards import NO_LABEL
from trainer.microbatch import NO_SAMPLE, MicroBatch
from trainer.order import Places, SampleOrder
from trainer.plan import StepPlan, TrainingPlan
from trainer.rows import RowGroup, ShardRows

I64 = npt.NDArray[np.int64]

# Tokens of a filler sequence: [CLS] and [SEP] in a real one, here two [PAD].
_FILLER_TOKENS = 2


@dataclass(frozen=True)
class Deal:
    """Rows ``bounds[r] : bounds[r + 1]`` of a global batch are rank r's; ``bins`` is a row's micro-batch."""

    bounds: I64
    micro_batches: int
    bins: I64


def cut_for_ranks(lengths: I64, world_size: int) -> I64:
    """Bounds int64 [world_size + 1] that cut the rows into runs of nearly equal tokens.

    The tokens before bound r differ from r / world_size of all tokens by at most half a row.
    """
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    target = np.arange(world_size + 1) * (int(ends[-1]) / world_size)
    above = np.clip(np.searchsorted(ends, target, side="left"), 1, max(len(lengths), 1))
    above = np.minimum(above, len(lengths))
    below = np.maximum(above - 1, 0)
    bounds = np.where(target - ends[below] <= ends[above] - target, below, above)
    bounds[0], bounds[-1] = 0, len(lengths)
    return bounds.astype(np.int64)


def deal(lengths: I64, world_size: int, budget: int) -> Deal:
    """How ranks and micro-batches share the rows of a global batch. The same on every rank.

    Within a rank, rows by falling length are dealt to and fro over the micro-batches, so that these are
    of nearly equal tokens; their number is the smallest with which no micro-batch of any rank exceeds
    ``budget``. Needs lengths <= budget.
    """
    bounds = cut_for_ranks(lengths, world_size)
    rank = np.searchsorted(bounds, np.arange(len(lengths)), side="right") - 1
    by_length = np.lexsort((np.arange(len(lengths)), -lengths, rank))
    turn = np.empty(len(lengths), dtype=np.int64)
    turn[by_length] = np.arange(len(lengths)) - bounds[rank[by_length]]
    tokens = np.bincount(rank, weights=lengths, minlength=world_size)
    count = max(1, int(np.ceil(tokens.max() / budget)) if len(lengths) else 1)
    while True:
        lap, seat = np.divmod(turn, count)
        bins = np.where(lap % 2 == 0, seat, count - 1 - seat)
        loads = np.bincount(rank * count + bins, weights=lengths, minlength=world_size * count)
        if not len(lengths) or loads.max() <= budget:
            return Deal(bounds, count, bins)
        count += 1


@dataclass(frozen=True)
class StepBatches:
    """What one rank trains in a step. ``samples`` are the row ids of its micro-batches, fillers left out."""

    plan: StepPlan
    micro_batches: list[MicroBatch]
    samples: I64
    epoch: int
    global_tokens: int
    masked: int
    labelled: int

    @property
    def tokens(self) -> int:
        """Real tokens of this rank."""
        return sum(batch.tokens for batch in self.micro_batches if batch.sample_ids[0] != NO_SAMPLE)


@dataclass(frozen=True)
class Stream:
    """The samples of one sequence length: their order and their rows."""

    order: SampleOrder
    rows: ShardRows


class BatchReader:
    """Reads the steps of one rank, some of them ahead, in threads.

    It holds no position: ``read(step)`` gives the same for any history of calls. Close it, or use it
    as a context manager, to end its threads.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        streams: Mapping[int, Stream],
        rank: int,
        world_size: int,
        *,
        threads: int = 2,
        ahead: int = 2,
    ) -> None:
        self._plan, self._streams = plan, streams
        self._rank, self._world_size = rank, world_size
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self._pending: dict[int, Future[StepBatches]] = {}

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads; what was read ahead is forgotten."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, step: int) -> StepBatches:
        """The micro-batches of this rank in ``step``. Raises CorpusError, StorageError."""
        wanted = range(step, min(step + 1 + self._ahead, self._plan.total_steps))
        for old in [number for number in self._pending if number not in wanted]:
            self._pending.pop(old).cancel()
        for number in wanted:
            if number not in self._pending:
                self._pending[number] = self._pool.submit(self._build, number)
        return self._pending.pop(step).result()

    def _build(self, step: int) -> StepBatches:
        plan = self._plan.at(step)
        stream = self._streams[plan.max_seq_length]
        samples = np.arange(plan.first_sample, plan.first_sample + plan.rows, dtype=np.int64)
        places = stream.order.locate(samples)
        lengths = row_lengths(places, stream.rows, whole=self._world_size == 1)
        shares = deal(lengths, self._world_size, plan.micro_batch_tokens)
        mine = slice(int(shares.bounds[self._rank]), int(shares.bounds[self._rank + 1]))
        table = gather_rows(places, mine, stream.rows)
        bins = shares.bins[mine]
        batches = [
            pack(table, np.flatnonzero(bins == number), plan.max_seq_length)
            for number in range(shares.micro_batches)
        ]
        return StepBatches(
            plan=plan,
            micro_batches=batches,
            samples=places.row_id[mine],
            epoch=int(places.epoch[0]),
            global_tokens=int(lengths.sum()),
            masked=int(table.masked_sizes.sum()),
            labelled=int((table.labels != NO_LABEL).sum()),
        )


def row_lengths(places: Places, rows: ShardRows, *, whole: bool) -> I64:
    """The length of each row in ``places``; ``whole`` reads all columns, for who needs them anyway."""
    lengths = np.empty(len(places.row), dtype=np.int64)
    for key, chosen in _by_group(places):
        of_group = rows.group(*key).lengths if whole else rows.lengths(*key)
        lengths[chosen] = of_group[places.row[chosen]]
    return lengths


@dataclass(frozen=True)
class RowTable:
    """Rows of several row groups: row i is input_ids[starts[i] : starts[i] + lengths[i]], and so on."""

    input_ids: npt.NDArray[np.int32]
    starts: I64
    lengths: I64
    segment_a: I64
    masked_positions: npt.NDArray[np.int32]
    masked_ids: npt.NDArray[np.int32]
    masked_starts: I64
    masked_sizes: I64
    labels: I64
    lang_ids: I64
    row_ids: I64
    epochs: I64


def gather_rows(places: Places, mine: slice, rows: ShardRows) -> RowTable:
    """The rows at ``places[mine]``, in that order."""
    part = Places(*(getattr(places, name)[mine] for name in places.__dataclass_fields__))
    size = len(part.row)
    names = ("starts", "lengths", "segment_a", "masked_starts", "masked_sizes", "labels", "lang_ids")
    columns = {name: np.zeros(size, dtype=np.int64) for name in names}
    groups: list[RowGroup] = []
    tokens = masked = 0
    for key, chosen in _by_group(part):
        group, row = rows.group(*key), part.row[chosen]
        columns["starts"][chosen] = group.token_starts[row] + tokens
        columns["lengths"][chosen] = group.token_starts[row + 1] - group.token_starts[row]
        columns["segment_a"][chosen] = group.segment_a_length[row]
        columns["masked_starts"][chosen] = group.masked_starts[row] + masked
        columns["masked_sizes"][chosen] = group.masked_starts[row + 1] - group.masked_starts[row]
        columns["labels"][chosen] = group.labels[row]
        columns["lang_ids"][chosen] = group.lang_ids[row]
        tokens += group.input_ids.size
        masked += group.masked_ids.size
        groups.append(group)
    return RowTable(
        input_ids=_joined([group.input_ids for group in groups]),
        masked_positions=_joined([group.masked_positions for group in groups]),
        masked_ids=_joined([group.masked_ids for group in groups]),
        row_ids=part.row_id,
        epochs=part.epoch,
        **columns,
    )


def pack(table: RowTable, chosen: I64, max_seq_length: int) -> MicroBatch:
    """The rows ``chosen`` of ``table`` as one micro-batch, or a filler when there are none."""
    if not chosen.size:
        return filler(max_seq_length)
    lengths = table.lengths[chosen]
    ends = np.cumsum(lengths)
    first = ends - lengths
    position = np.arange(ends[-1]) - np.repeat(first, lengths)
    ids = table.input_ids[position + np.repeat(table.starts[chosen], lengths)]
    sizes = table.masked_sizes[chosen]
    mask = np.arange(sizes.sum()) + np.repeat(table.masked_starts[chosen] - (np.cumsum(sizes) - sizes), sizes)
    return MicroBatch(
        input_ids=torch.from_numpy(ids.astype(np.int64)),
        token_type_ids=torch.from_numpy(
            (position >= np.repeat(table.segment_a[chosen], lengths)).astype(np.int64)
        ),
        position_ids=torch.from_numpy(position),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        max_seqlen=max_seq_length,
        masked_index=torch.from_numpy(table.masked_positions[mask] + np.repeat(first, sizes)),
        masked_ids=torch.from_numpy(table.masked_ids[mask].astype(np.int64)),
        next_sentence_labels=torch.from_numpy(table.labels[chosen]),
        sample_ids=torch.from_numpy(table.row_ids[chosen]),
        lang_ids=torch.from_numpy(table.lang_ids[chosen]),
    )


def filler(max_seq_length: int) -> MicroBatch:
    """A micro-batch without any target, for a rank that has no row."""
    none = torch.zeros(0, dtype=torch.int64)
    return MicroBatch(
        input_ids=torch.zeros(_FILLER_TOKENS, dtype=torch.int64),
        token_type_ids=torch.zeros(_FILLER_TOKENS, dtype=torch.int64),
        position_ids=torch.arange(_FILLER_TOKENS),
        cu_seqlens=torch.tensor([0, _FILLER_TOKENS], dtype=torch.int32),
        max_seqlen=max_seq_length,
        masked_index=none,
        masked_ids=none,
        next_sentence_labels=torch.tensor([NO_LABEL]),
        sample_ids=torch.tensor([NO_SAMPLE]),
        lang_ids=torch.tensor([-1]),
    )


def _by_group(places: Places) -> list[tuple[tuple[int, int, int], I64]]:
    """((pass, shard, row group), indices into places) for each row group, in order of first use."""
    groups = int(places.row_group.max(initial=0)) + 1
    shards = int(places.shard.max(initial=0)) + 1
    keys = (places.corpus_pass * shards + places.shard) * groups + places.row_group
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    by_key = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    found = []
    for number in np.argsort(first):
        rest, group = divmod(int(unique[number]), groups)
        found.append(((*divmod(rest, shards), group), by_key[number]))
    return found


def _joined(arrays: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
