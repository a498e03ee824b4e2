"""Micro-batches: their invariants, fixed shapes and copies."""

import dataclasses
from typing import Any

import pytest
import torch

from schemas.errors import CorpusError
from tests.trainer.packing import Row, pack
from trainer.model.microbatch import NO_SAMPLE, NO_TARGET

ROWS = [
    Row(ids=[2, 7, 8, 3, 9, 3], segment_a=4, masked={1: 11}, label=0, lang=1),
    Row(ids=[2, 5, 3], segment_a=3, masked={}, label=1, lang=0),
]


def test_a_packed_batch_is_sound() -> None:
    batch = pack(ROWS)
    batch.check(vocab_size=12, max_positions=6)
    assert batch.cu_seqlens.tolist() == [0, 6, 9]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", torch.full((9,), 12), r"shard-3: input_ids: 12 at place 0 is outside \[0, 12\)"),
        ("input_ids", torch.zeros(9, dtype=torch.int32), "input_ids: expected torch.int64"),
        ("masked_ids", torch.tensor([12]), "masked_ids: 12"),
        ("masked_index", torch.tensor([9]), "masked_index: 9"),
        ("position_ids", torch.arange(9), "position_ids: 6"),
        ("token_type_ids", torch.full((9,), 2), "token_type_ids: 2"),
        ("cu_seqlens", torch.tensor([0, 10, 9], dtype=torch.int32), "cu_seqlens: must ascend"),
        ("next_sentence_labels", torch.tensor([0]), r"next_sentence_labels: expected torch.int64 \[2\]"),
        ("max_seqlen", 5, "max_seqlen: 5"),
    ],
)
def test_unsound_batches_are_refused_by_field(field: str, value: Any, message: str) -> None:
    batch = dataclasses.replace(pack(ROWS), **{field: value})
    with pytest.raises(CorpusError, match=message):
        batch.check(vocab_size=12, max_positions=6, origin="shard-3")


def test_padding_to_a_fixed_shape_keeps_the_instances() -> None:
    batch = pack(ROWS)
    fixed = batch.padded_to(tokens=24, sequences=8, masked=5)
    fixed.check(vocab_size=12, max_positions=6)
    assert fixed.cu_seqlens.tolist() == [0, 6, 9, 15, 21, 24, 24, 24, 24]
    assert fixed.input_ids[:9].equal(batch.input_ids)
    assert fixed.sample_ids[2:].eq(NO_SAMPLE).all()
    assert fixed.masked_ids.tolist() == [11, *[NO_TARGET] * 4]


@pytest.mark.parametrize("shape", [(8, 8, 5), (24, 4, 5), (24, 8, 0)])
def test_a_shape_that_is_too_small_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pack(ROWS).padded_to(*shape)


def test_copies_keep_every_field() -> None:
    batch = pack(ROWS)
    copy = batch.to("cpu")
    assert copy.max_seqlen == batch.max_seqlen
    assert copy.masked_index.equal(batch.masked_index)
