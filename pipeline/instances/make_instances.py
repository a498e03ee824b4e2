"""Makes training rows from the tokenized documents of one bucket: pairs or packing, masks, shuffle.

This is a pure function of the documents, the settings, the seed and the pass. The order in which documents
arrive does not matter. The modules pairs and packing plan ranges of tokens. This module copies, masks and
lays them out, a block of rows at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pipeline.config import Instances, Objective, Packing, SequenceLength
from pipeline.instances.bucket import BucketDocuments, Sentences, prepare_sentences
from pipeline.instances.counts import count_instances
from pipeline.instances.packing import plan_packed
from pipeline.instances.pairs import plan_pairs
from pipeline.instances.row_plan import MASKS, ORDER, RowPlan, by_language
from schemas.arrays import I64
from schemas.columns.shards import SHARD
from schemas.errors import ConfigError
from schemas.instance_counts import InstanceCounts
from schemas.masking.targets import (
    Ids,
    MaskedRows,
    MaskingRule,
    MaskingVocabulary,
    Offsets,
    Rows,
    Segmenter,
    mask_rows,
    offsets_of,
)
from schemas.randomness import draws
from schemas.vocabulary import CLS, SEP, UNK

MIN_SEQ_LENGTH = 8
# Number of rows to copy and mask at a time.
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class InstanceSettings:
    """Settings for the rows of one set."""

    vocabulary: MaskingVocabulary
    cls_id: int
    sep_id: int
    unknown_id: int
    max_seq_length: int = 128
    """Tokens in a row, special tokens included."""
    objective: Objective = "nsp"
    packing: Packing = "full_sentences"
    """For objective none."""
    short_seq_prob: float = 0.1
    """Share of the rows with a random shorter target length."""
    masking: MaskingRule = field(default_factory=MaskingRule)
    segmenter: Segmenter | None = None
    """Word boundaries for scripts without ``##``."""

    def __post_init__(self) -> None:
        if self.max_seq_length < MIN_SEQ_LENGTH:
            raise ConfigError(f"max_seq_length: {self.max_seq_length} is less than {MIN_SEQ_LENGTH}")
        if self.masking.max_predictions < 1:
            raise ConfigError(f"max_predictions: {self.masking.max_predictions} is less than 1")

    @classmethod
    def from_config(
        cls,
        config: Instances,
        length: SequenceLength,
        pieces: Sequence[str],
        segmenter: Segmenter | None = None,
    ) -> "InstanceSettings":
        """For one of the lengths of a build. Raises CorpusError when ``pieces`` is not a BERT vocabulary."""
        masking = config.masking
        return cls(
            vocabulary=_masking_vocabulary(tuple(pieces), masking.predict_unknown),
            cls_id=pieces.index(CLS),
            sep_id=pieces.index(SEP),
            unknown_id=pieces.index(UNK),
            max_seq_length=length.max_seq_length,
            objective=config.objective,
            packing=config.packing,
            short_seq_prob=config.short_seq_prob,
            masking=MaskingRule(
                unit=masking.unit,
                probability=masking.probability,
                max_predictions=length.max_predictions,
                mask_share=masking.mask_share,
                random_share=masking.random_share,
            ),
            segmenter=segmenter,
        )


@lru_cache(maxsize=2)
def _masking_vocabulary(pieces: tuple[str, ...], predict_unknown: bool) -> MaskingVocabulary:
    """Cached, because a process makes many buckets with the same vocabulary."""
    return MaskingVocabulary.from_pieces(pieces, predict_unknown)


@dataclass(frozen=True)
class BucketInstances:
    """The shuffled rows of a bucket with the columns of schemas.columns.shards.SHARD, and their counts."""

    table: pa.Table
    counts: dict[str, InstanceCounts]
    """By language."""


def make_instances(
    bucket: BucketDocuments, settings: InstanceSettings, seed: int, pass_number: int
) -> BucketInstances:
    """All rows of the bucket. Raises CorpusError for a duplicate document copy or a lost token."""
    tokens = settings.max_seq_length - (2 if settings.objective == "none" else 3)
    # For pairs, half the length, so that two consecutive parts fit into one row.
    part = tokens if settings.objective == "none" else tokens // 2
    sentences = prepare_sentences(
        bucket,
        limit=tokens,
        part=part,
        continuation=settings.vocabulary.continuation,
        seed=seed,
        purpose=(pass_number, settings.max_seq_length),
    )
    plan = _plan(sentences, settings)
    _drop_unpredictable(plan, sentences, settings)
    plan.select(np.lexsort((plan.key, draws(plan.key, ORDER))))
    batches, masks = _lay_out(plan, bucket, sentences, settings)
    counts = count_instances(
        bucket,
        sentences,
        plan,
        masks,
        max_seq_length=settings.max_seq_length,
        unknown_id=settings.unknown_id,
        continuation=settings.vocabulary.continuation,
    )
    for lang, account in counts.items():
        account.check(f"instances of language {lang}")
    return BucketInstances(pa.Table.from_batches(batches, schema=SHARD), counts)


def _plan(sentences: Sentences, settings: InstanceSettings) -> RowPlan:
    length, short = settings.max_seq_length, settings.short_seq_prob
    if settings.objective == "none":
        crossing = settings.packing == "full_sentences"
        return plan_packed(sentences, length, short, crossing, settings.sep_id)
    return plan_pairs(sentences, length, short, swap=settings.objective == "sop")


def _drop_unpredictable(plan: RowPlan, sentences: Sentences, settings: InstanceSettings) -> None:
    """Drops rows without predictable tokens (only [UNK]). Their tokens are left over."""
    blocked = np.flatnonzero(settings.vocabulary.blocked[plan.ids])
    bounds = np.stack([plan.a_start, plan.a_stop, plan.b_start, plan.b_stop])
    tokens, hidden = np.diff(bounds, axis=0), np.diff(np.searchsorted(blocked, bounds), axis=0)
    # Rows 0 and 2 of the differences are the segments A and B.
    bad = (tokens - hidden)[::2].sum(axis=0) == 0
    language = sentences.language[plan.document[bad]]
    lost = by_language(language, len(sentences.languages), plan.owned[bad])
    plan.left_over["nothing_to_predict"] = lost
    plan.select(~bad)


def _lay_out(
    plan: RowPlan, bucket: BucketDocuments, sentences: Sentences, settings: InstanceSettings
) -> tuple[list[pa.RecordBatch], list[I64]]:
    """The rows as Arrow batches, and the mask counts of each batch: [3, languages]."""
    names = pa.array(sentences.languages, pa.string())
    keys = pa.array(bucket.keys, pa.string())
    padded = np.zeros(plan.ids.size + 2, np.int32)
    padded[1:-1] = plan.ids
    batches, masks = [], []
    for start in range(0, plan.key.size, _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        ids, offsets = _copy_rows(padded, plan, rows, settings)
        keyed = Rows(ids, offsets, draws(plan.key[rows], MASKS))
        masked = mask_rows(keyed, settings.masking, settings.vocabulary, settings.segmenter)
        language = sentences.language[plan.document[rows]]
        a_length = plan.a_stop[rows] - plan.a_start[rows] + 2
        columns = [
            _list_column(offsets, masked.input_ids),
            pa.array(a_length.astype(np.int32)),
            _list_column(masked.position_offsets, masked.positions),
            _list_column(masked.position_offsets, masked.labels),
            pa.array(plan.label[rows]),
            pa.array(np.diff(offsets).astype(np.int32)),
            pa.DictionaryArray.from_arrays(pa.array(language.astype(np.int32)), names),
            keys.take(pa.array(plan.document[rows])),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SHARD))
        masks.append(_mask_counts(masked, offsets, language, len(sentences.languages), settings))
    return batches, masks


def _list_column(offsets: Offsets, values: Ids) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _copy_rows(padded: Ids, plan: RowPlan, rows: slice, settings: InstanceSettings) -> tuple[Ids, Offsets]:
    """The flat ids of some rows with their special tokens, and the row offsets.

    ``padded`` is plan.ids with one more element at either end. Each segment is copied together with the
    neighbors that the special tokens replace.
    """
    a_start, b_start = plan.a_start[rows], plan.b_start[rows]
    a_size, b_size = plan.a_stop[rows] - a_start, plan.b_stop[rows] - b_start
    two = b_size > 0
    sizes = np.stack([a_size + 2, np.where(two, b_size + 1, 0)], axis=1)
    lengths = sizes.sum(axis=1)
    offsets = offsets_of(lengths)
    part_sizes = sizes.ravel()
    # In ``padded`` a segment's first token is at start + 1. The copy of A starts at the element before it.
    sources = np.stack([a_start, b_start + 1], axis=1).ravel()
    delta = sources - offsets_of(part_sizes)[:-1]
    index = np.repeat(delta, part_sizes)
    index += np.arange(index.size)
    ids = padded[index]
    ids[offsets[:-1]] = settings.cls_id
    ids[offsets[:-1] + a_size + 1] = settings.sep_id
    ids[offsets[1:] - 1] = settings.sep_id
    return ids, offsets


def _mask_counts(
    masked: MaskedRows, offsets: Offsets, language: I64, languages: int, settings: InstanceSettings
) -> I64:
    """[3, languages] targets, targets replaced by [MASK], and unchanged targets."""
    counts = np.diff(masked.position_offsets)
    flat = np.repeat(offsets[:-1], counts) + masked.positions
    shown = masked.input_ids[flat]
    of_target = np.repeat(language, counts)
    by_mask = of_target[shown == settings.vocabulary.mask_id]
    unchanged = of_target[shown == masked.labels]
    return np.stack([by_language(each, languages) for each in (of_target, by_mask, unchanged)])
