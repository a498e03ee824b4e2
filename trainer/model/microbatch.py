"""The input of one forward and backward pass: several sequences packed without padding."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from schemas.errors import CorpusError
from schemas.labels import NO_LABEL

# In masked_ids: a slot that only fills a fixed shape. It adds nothing to a loss or a count.
NO_TARGET = -1
# In sample_ids: a sequence that only fills a fixed shape.
NO_SAMPLE = -1

_DTYPES = {
    "input_ids": torch.int64,
    "token_type_ids": torch.int64,
    "position_ids": torch.int64,
    "cu_seqlens": torch.int32,
    "masked_index": torch.int64,
    "masked_ids": torch.int64,
    "next_sentence_labels": torch.int64,
    "sample_ids": torch.int64,
    "lang_ids": torch.int64,
}


@dataclass(frozen=True)
class MicroBatch:
    """``n`` sequences, one after another in ``T`` tokens, with ``M`` masked tokens in all.

    Sequence ``i`` is tokens ``cu_seqlens[i] : cu_seqlens[i + 1]``. Positions start at 0 in each.
    A batch of fixed shape (see ``padded_to``) ends with sequences whose sample id is NO_SAMPLE, which may
    be empty, and with masked slots whose id is NO_TARGET. Neither adds to a loss or a count.
    """

    input_ids: Tensor
    """int64 [T], masks applied."""
    token_type_ids: Tensor
    """int64 [T], 0 or 1."""
    position_ids: Tensor
    """int64 [T]."""
    cu_seqlens: Tensor
    """int32 [n + 1], ascending from 0 to T. Two neighbors may be equal."""
    max_seqlen: int
    """Upper limit of the length of a sequence."""
    masked_index: Tensor
    """int64 [M], indices into the T tokens."""
    masked_ids: Tensor
    """int64 [M], the original ids at these indices."""
    next_sentence_labels: Tensor
    """int64 [n]: 0 is next (or in order), 1 is random (or swapped), -1 is no label."""
    sample_ids: Tensor
    """int64 [n], the row id of each sequence."""
    lang_ids: Tensor
    """int64 [n], index into the manifest's sorted languages, or -1 for a filler."""

    @property
    def tokens(self) -> int:
        """Number of tokens, including fillers."""
        return self.input_ids.shape[0]

    @property
    def sequences(self) -> int:
        """Number of sequences, including fillers."""
        return self.cu_seqlens.shape[0] - 1

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "MicroBatch":
        """A copy on ``device``. With ``non_blocking``, a copy from pinned memory is asynchronous."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "MicroBatch":
        """A copy in pinned (page-locked) memory, from which a GPU copies while it computes."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> "MicroBatch":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return MicroBatch(
            **{
                name: function(value) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )

    def check(self, vocab_size: int, max_positions: int, origin: str = "micro-batch") -> None:
        """Raises CorpusError that names ``origin`` and the first field that breaks an invariant.

        It copies to the host, so it is meant for tests and not for every step.
        """
        for name, problem in _problems(self, vocab_size, max_positions):
            raise CorpusError(f"{origin}: {name}: {problem}")

    def padded_to(self, tokens: int, sequences: int, masked: int, pad_id: int = 0) -> "MicroBatch":
        """The same sequences in a batch of exactly this shape, for compiled graphs.

        The filler tokens form sequences of at most ``max_seqlen``, so that no filler attends to more tokens
        than a real sequence does. Raises ValueError when the batch with its fillers does not fit.
        """
        missing = tokens - self.tokens
        fillers = [self.max_seqlen] * (missing // self.max_seqlen)
        if missing % self.max_seqlen:
            fillers.append(missing % self.max_seqlen)
        slots = sequences - self.sequences
        targets = masked - self.masked_ids.shape[0]
        if missing < 0 or targets < 0 or slots < len(fillers):
            size = (self.tokens, self.sequences + len(fillers), self.masked_ids.shape[0])
            raise ValueError(f"a micro-batch of {size} does not fit into {(tokens, sequences, masked)}")
        fillers += [0] * (slots - len(fillers))
        positions = [torch.arange(length) for length in fillers]
        ends = torch.tensor([self.tokens, *fillers]).cumsum(0)[1:]
        device = self.input_ids.device

        def extended(tensor: Tensor, filler: Tensor | int, count: int) -> Tensor:
            tail = torch.full((count,), filler) if isinstance(filler, int) else filler
            return torch.cat([tensor, tail.to(device=device, dtype=tensor.dtype)])

        return MicroBatch(
            input_ids=extended(self.input_ids, pad_id, missing),
            token_type_ids=extended(self.token_type_ids, 0, missing),
            position_ids=extended(self.position_ids, torch.cat([*positions, torch.arange(0)]), missing),
            cu_seqlens=extended(self.cu_seqlens, ends, slots),
            max_seqlen=self.max_seqlen,
            masked_index=extended(self.masked_index, 0, targets),
            masked_ids=extended(self.masked_ids, NO_TARGET, targets),
            next_sentence_labels=extended(self.next_sentence_labels, NO_LABEL, slots),
            sample_ids=extended(self.sample_ids, NO_SAMPLE, slots),
            lang_ids=extended(self.lang_ids, -1, slots),
        )


def _problems(batch: MicroBatch, vocab_size: int, max_positions: int) -> list[tuple[str, str]]:
    """(field, problem) for every problem of ``batch``. Wrong shapes end the list early."""
    shapes = {
        **dict.fromkeys(("input_ids", "token_type_ids", "position_ids"), batch.tokens),
        "cu_seqlens": batch.sequences + 1,
        **dict.fromkeys(("masked_index", "masked_ids"), batch.masked_ids.shape[0]),
        **dict.fromkeys(("next_sentence_labels", "sample_ids", "lang_ids"), batch.sequences),
    }
    problems = []
    for name, length in shapes.items():
        tensor: Tensor = getattr(batch, name)
        if tensor.dtype != _DTYPES[name] or tensor.shape != (length,):
            problems.append(
                (name, f"expected {_DTYPES[name]} [{length}], got {tensor.dtype} {list(tensor.shape)}")
            )
    if problems:
        return problems
    lengths = batch.cu_seqlens.diff()
    if batch.cu_seqlens[0] != 0 or batch.cu_seqlens[-1] != batch.tokens or bool((lengths < 0).any()):
        return [("cu_seqlens", f"must ascend from 0 to {batch.tokens}")]
    if batch.max_seqlen > max_positions or (len(lengths) and int(lengths.max()) > batch.max_seqlen):
        longest = int(lengths.max())
        problems.append(
            ("max_seqlen", f"{batch.max_seqlen}, with a longest of {longest}, of {max_positions} positions")
        )
    ranges = {
        "input_ids": (0, vocab_size),
        "token_type_ids": (0, 2),
        "position_ids": (0, max_positions),
        "masked_index": (0, batch.tokens),
        "masked_ids": (NO_TARGET, vocab_size),
        "next_sentence_labels": (NO_LABEL, 2),
        "sample_ids": (NO_SAMPLE, 1 << 62),
        "lang_ids": (-1, 1 << 31),
    }
    for name, (low, high) in ranges.items():
        tensor = getattr(batch, name)
        outside = ((tensor < low) | (tensor >= high)).nonzero()
        if len(outside):
            place = int(outside[0])
            problems.append((name, f"{int(tensor[place])} at place {place} is outside [{low}, {high})"))
    return problems
