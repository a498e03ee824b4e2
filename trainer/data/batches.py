"""Global batches as micro-batches: what each rank trains in each step.

Rank 0 reads the lengths of all rows of a global batch and shares them. From the lengths every rank computes
the same plan: it sorts the batch by row group and cuts it into one run of rows for each rank, with nearly
equal numbers of tokens. Each rank distributes its rows over the same number of micro-batches, none of which
exceeds the token budget. A rank or micro-batch without a row trains a filler that adds nothing to the loss,
so that all ranks make the same collective calls. No state carries over from one step to the next.
"""

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from schemas.arrays import I64
from schemas.errors import CorpusError
from schemas.labels import NO_LABEL
from trainer.data.dynamic_masks import DynamicMasks
from trainer.data.language_choice import LanguageChoice
from trainer.data.order import Places, SampleOrder
from trainer.data.packing import gather_rows, pack, row_languages, row_lengths
from trainer.data.rows import ShardRows
from trainer.data.shared_lengths import SharedLengths
from trainer.data.step_plan import StepPlan, TrainingPlan
from trainer.data.truncation import truncate_rows
from trainer.model.microbatch import MicroBatch

_RATE_GRAIN = 0.05


@dataclass(frozen=True)
class BatchAssignment:
    """How ranks and micro-batches share the rows of a global batch."""

    bounds: I64
    """int64 [world_size + 1]: rows ``bounds[r] : bounds[r + 1]`` belong to rank r."""
    micro_batches: int
    """Number of micro-batches of each rank."""
    bins: I64
    """int64 [rows]: the micro-batch of each row, within its rank."""


def rank_bounds(lengths: I64, world_size: int) -> I64:
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


def assign_rows(lengths: I64, world_size: int, budget: int, most_rows: int | None = None) -> BatchAssignment:
    """Divides the rows of a global batch among ranks and micro-batches. Every rank gets the same result.

    Each rank sorts its rows by decreasing length and deals them to its micro-batches back and forth, so that
    the micro-batches have nearly equal numbers of tokens. It takes the smallest number of micro-batches for
    which none of any rank exceeds ``budget`` tokens or ``most_rows`` rows. Needs lengths <= budget.
    """
    bounds = rank_bounds(lengths, world_size)
    rank = np.searchsorted(bounds, np.arange(len(lengths)), side="right") - 1
    by_length = np.lexsort((np.arange(len(lengths)), -lengths, rank))
    turn = np.empty(len(lengths), dtype=np.int64)
    turn[by_length] = np.arange(len(lengths)) - bounds[rank[by_length]]
    tokens = np.bincount(rank, weights=lengths, minlength=world_size)
    count = max(1, int(np.ceil(tokens.max() / budget)) if len(lengths) else 1)
    while True:
        lap, seat = np.divmod(turn, count)
        bins = np.where(lap % 2 == 0, seat, count - 1 - seat)
        place = rank * count + bins
        loads = np.bincount(place, weights=lengths, minlength=world_size * count)
        rows = np.bincount(place, minlength=world_size * count)
        if not len(lengths) or (loads.max() <= budget and (most_rows is None or rows.max() <= most_rows)):
            return BatchAssignment(bounds, count, bins)
        count += 1


@dataclass(frozen=True)
class StepBatches:
    """What one rank trains in a step."""

    plan: StepPlan
    micro_batches: list[MicroBatch]
    row_ids: I64
    """The row ids of this rank, without fillers."""
    epoch: int
    tokens: int
    """Real tokens of this rank."""
    global_tokens: int
    """Real tokens of all ranks."""
    global_squares: int
    """Sum of the squared lengths of the rows of all ranks."""
    masked_tokens: int
    """Masked tokens of this rank."""
    pairs: int
    """Labeled sentence pairs of this rank."""


@dataclass(frozen=True)
class FixedShape:
    """One shape for all micro-batches of a length, so that torch.compile compiles the network once."""

    rows_per_token: float
    """Most rows of a micro-batch, per token."""
    masked_per_token: float
    """Most masked tokens of a micro-batch per token, plus one more for each row."""
    token_grain: int | None = None
    """For an encoder that is not compiled: pad only to a multiple of this. None pads to the whole shape."""

    def most_rows(self, tokens: int) -> int:
        """Most real rows in a micro-batch of ``tokens`` tokens."""
        return max(1, math.ceil(tokens * self.rows_per_token))

    def apply(self, batch: MicroBatch, tokens: int, mask_rate: float | None = None) -> MicroBatch:
        """The batch with fillers. Raises CorpusError when it has more masked tokens than the shape.

        ``mask_rate`` stands for masked_per_token, rounded up so that few rates make few shapes.
        """
        rows = self.most_rows(tokens)
        rate = self.masked_per_token if mask_rate is None else -(-mask_rate // _RATE_GRAIN) * _RATE_GRAIN
        masked = math.ceil(tokens * rate) + rows
        if batch.masked_ids.shape[0] > masked:
            raise CorpusError(
                f"a micro-batch of {batch.tokens} tokens has {batch.masked_ids.shape[0]} masked tokens, more"
                f" than the {masked} that the corpus' masking rule allows; set data.fixed_shapes to false"
            )
        most_filled = tokens if self.token_grain is None else self.token_grain
        sequences = rows + math.ceil(most_filled / batch.max_seqlen) + 1
        if self.token_grain is not None:
            tokens = min(tokens, -(-batch.tokens // self.token_grain) * self.token_grain)
        return batch.padded_to(tokens, sequences, masked)


@dataclass(frozen=True)
class Stream:
    """The samples of one length: order, rows, and optional masks, fixed shape and language choice."""

    order: SampleOrder
    rows: ShardRows
    masks: DynamicMasks | None = None
    shape: FixedShape | None = None
    languages: LanguageChoice | None = None


class BatchReader:
    """Reads the steps of one rank, and some steps ahead, in threads.

    It has no position: ``read(step)`` gives the same result after any calls before. Close it, or use it as
    a context manager, to end its threads.
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
        pin: bool = False,
        shared: SharedLengths | None = None,
    ) -> None:
        """``pin`` puts micro-batches into page-locked memory, from which a GPU copies while it computes.

        ``shared`` lets rank 0 read the lengths for all. All ranks must then read the same steps in the
        same order. Without it each rank reads them.
        """
        self._plan, self._streams = plan, streams
        self._rank, self._world_size = rank, world_size
        self._ahead, self._pin, self._shared = ahead, pin, shared
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self._pending: dict[int, Future[StepBatches]] = {}
        self._limits: dict[int, int] = {}

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads and drops what they have read ahead."""
        if self._shared is not None:
            self._shared.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, step: int) -> StepBatches:
        """The micro-batches of this rank in ``step``. Raises CorpusError, StorageError."""
        needed = range(step, min(step + 1 + self._ahead, self._plan.total_steps))
        for old in [number for number in self._pending if number not in needed]:
            self._pending.pop(old).cancel()
        for number in needed:
            if number not in self._pending:
                self._pending[number] = self._submit(number)
        return self._pending.pop(step).result()

    def limit_micro_batches(self, phase: int, tokens: int) -> None:
        """Micro-batches of ``phase`` have at most ``tokens`` tokens from now on. All ranks must call it."""
        self._limits[phase] = tokens
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()

    def _submit(self, step: int) -> Future[StepBatches]:
        shared = self._shared
        # Rank 0 submits the reading of the lengths before the task that waits for them, so that task never
        # occupies the last thread while the reading still needs one.
        heads = shared.broadcast(lambda: self._heads(step), self._pool) if shared is not None else None
        return self._pool.submit(self._build, step, heads)

    def _places(self, plan: StepPlan) -> Places:
        samples = np.arange(plan.first_sample, plan.first_sample + plan.samples, dtype=np.int64)
        return self._streams[plan.max_seq_length].order.locate(samples)

    def _heads(self, step: int) -> I64:
        """Length of each sample, int64 [samples]. With a language choice [samples, 2], with languages."""
        plan = self._plan.at(step)
        stream, places = self._streams[plan.max_seq_length], self._places(plan)
        read_groups = self._world_size == 1
        lengths = row_lengths(places, stream.rows, read_groups=read_groups)
        if stream.languages is None:
            return lengths
        return np.stack([lengths, row_languages(places, stream.rows, read_groups=read_groups)], axis=1)

    def _chosen(self, plan: StepPlan, heads: I64) -> tuple[Places, I64]:
        """Places and lengths of the rows of the global batch."""
        places, choice = self._places(plan), self._streams[plan.max_seq_length].languages
        lengths = heads
        if choice is not None:
            chosen = choice.rows(heads[:, 1], plan.step, plan.rows)
            places, lengths = places.take(chosen), heads[chosen, 0]
        # The gradient does not depend on which rank trains which row. Each rank therefore takes rows that
        # are stored together: it reads few row groups, and the same ones in the next steps of their window.
        order = places.grouping()
        return places.take(order), np.minimum(lengths[order], plan.longest)

    def _build(self, step: int, shared_heads: Future[I64] | None) -> StepBatches:
        plan = self._plan.at(step)
        budget = min(plan.micro_batch_tokens, self._limits.get(plan.phase, plan.micro_batch_tokens))
        plan, stream = replace(plan, micro_batch_tokens=budget), self._streams[plan.max_seq_length]
        heads = self._heads(step) if shared_heads is None else shared_heads.result()
        places, lengths = self._chosen(plan, heads)
        most_rows = stream.shape.most_rows(budget) if stream.shape else None
        shares = assign_rows(lengths, self._world_size, budget, most_rows)
        own = slice(int(shares.bounds[self._rank]), int(shares.bounds[self._rank + 1]))
        table = truncate_rows(gather_rows(places, own, stream.rows), plan.longest)
        if stream.masks is not None:
            table = stream.masks.apply(table, plan.masks)
        bins = shares.bins[own]
        batches = [
            pack(table, np.flatnonzero(bins == number), plan.max_seq_length)
            for number in range(shares.micro_batches)
        ]
        if stream.shape:
            batches = [stream.shape.apply(batch, budget, plan.masks.rate) for batch in batches]
        if self._pin:
            batches = [batch.pin_memory() for batch in batches]
        return StepBatches(
            plan=plan,
            micro_batches=batches,
            row_ids=places.row_id[own],
            epoch=int(places.epoch.min()),
            tokens=int(table.lengths.sum()),
            global_tokens=int(lengths.sum()),
            global_squares=int((lengths**2).sum()),
            masked_tokens=int(table.masked_sizes.sum()),
            pairs=int((table.labels != NO_LABEL).sum()),
        )
