"""What became of the tokens of a bucket: counted by language, and closed like an account."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.instances.bucket import BucketDocuments, Ints, Sentences
from pipeline.instances.row_plan import RowPlan, by_language
from pipeline.tallies import add_fields
from schemas.errors import CorpusError
from schemas.masking import Flags

# Raised when what is counted changes: parts with other counts are made anew.
COUNTS_VERSION = 2
LENGTH_BINS = 16
_SENTENCE_BINS = 16


@dataclass
class InstanceCounts:
    """Counts of one language in one set of instances; `add` joins those of two buckets.

    The account: tokens_in = tokens_used + tokens_cut + the sum of left_over.
    """

    documents: int = 0
    """Documents (copies included)."""
    empty_documents: int = 0
    """Documents without a token."""
    sentences: int = 0
    """Sentences that came in, empty ones included."""
    document_sentences: list[int] = field(default_factory=lambda: [0] * _SENTENCE_BINS)
    """Documents with text by their sentences: 1, 2-3, 4-7, 8-15 ... (after long ones were cut)."""
    sentences_cut: int = 0
    """Sentences that were longer than the length and were cut into pieces."""
    sentence_pieces: int = 0
    """The pieces they became."""
    tokens_in: int = 0
    """Tokens that came in."""
    tokens_used: int = 0
    """Tokens that are in the row made for them."""
    tokens_cut: int = 0
    """Tokens cut off their row to fit the length."""
    left_over: dict[str, int] = field(default_factory=dict)
    """Reason -> tokens for which no row was made."""
    tokens_unseen: int = 0
    """Tokens cut or left over that no other row holds either."""
    tokens_reused: int = 0
    """Tokens that a row holds for the second time: random B, repeated A."""
    tokens_unknown: int = 0
    """[UNK] among the tokens that came in."""
    words_in: int = 0
    """Words that came in: tokens without ``##``. A long run without spaces counts once a stretch."""
    rows: int = 0
    row_tokens: int = 0
    """Lengths of all rows, special tokens included."""
    labels: dict[str, int] = field(default_factory=dict)
    """next_sentence_label -> rows."""
    events: dict[str, int] = field(default_factory=dict)
    """Event -> how often: no_random_partner, one_sentence_documents, repeated_a."""
    masked: int = 0
    """Targets."""
    masked_by_mask: int = 0
    """Targets that [MASK] replaces."""
    masked_unchanged: int = 0
    """Targets that stay as they are (a random piece may equal the original too)."""
    lengths: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Rows by sixteenths of the maximum length."""

    def add(self, other: "InstanceCounts") -> None:
        """Add the counts of ``other``."""
        add_fields(self, other)

    def check(self, origin: str) -> None:
        """Raises CorpusError when the account does not close."""
        out = self.tokens_used + self.tokens_cut + sum(self.left_over.values())
        if out != self.tokens_in:
            raise CorpusError(f"{origin}: {self.tokens_in} tokens in, but {out} used, cut or left over")

    @property
    def median_sentences(self) -> int:
        """Least number of sentences of the middle document (1, 2, 4, 8 ...); 0 without documents."""
        half, seen = sum(self.document_sentences) / 2, 0
        for power, documents in enumerate(self.document_sentences):
            seen += documents
            if seen >= half > 0:
                return 1 << power
        return 0

    def as_dict(self) -> dict[str, Any]:
        """For a marker, the manifest or the report."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InstanceCounts":
        """What `as_dict` gave."""
        return cls(**values)


def add_counts(total: dict[str, InstanceCounts], more: Mapping[str, InstanceCounts]) -> None:
    """Add the counts of a bucket, by language, to those in ``total``."""
    for lang, counts in more.items():
        total.setdefault(lang, InstanceCounts()).add(counts)


def pair_warnings(by_language: Mapping[str, InstanceCounts]) -> list[str]:
    """What is odd about the sentence pairs of a set: one line for each language that has to be looked at.

    Documents of one sentence have no true next sentence; mostly they are a source in which blank
    lines or rows do not mean the end of a document.
    """
    lines = []
    for lang, counts in sorted(by_language.items()):
        labels = counts.labels.get("0", 0) + counts.labels.get("1", 0)
        documents = sum(counts.document_sentences)
        if labels and counts.median_sentences == 1:
            share = counts.labels.get("1", 0) / labels
            lines.append(
                f"{lang}: the median document has 1 sentence ({counts.document_sentences[0]:,} of "
                f"{documents:,} documents), so {share:.0%} of the pairs are random; "
                "is every line of the source its own document?"
            )
    return lines


def count_instances(
    bucket: BucketDocuments,
    sentences: Sentences,
    plan: RowPlan,
    masks: list[Ints],
    *,
    max_seq_length: int,
    unknown_id: int,
    continuation: Flags,
) -> dict[str, InstanceCounts]:
    """The counts of a bucket by language.

    ``masks``: parts of [3, languages] each: targets, those replaced by [MASK], those unchanged.
    ``continuation``: [vocabulary] whether a piece goes on with a word.
    """
    languages = len(sentences.languages)
    columns = _document_columns(bucket, sentences, unknown_id, continuation)
    columns |= _row_columns(sentences, plan, columns["tokens_in"])
    total = np.sum(masks, axis=0) if masks else np.zeros((3, languages), np.int64)
    columns |= dict(zip(("masked", "masked_by_mask", "masked_unchanged"), total, strict=True))
    language = sentences.language[plan.document]
    bins = (plan.lengths() - 1) * LENGTH_BINS // max_seq_length
    lengths = by_language(language * LENGTH_BINS + bins, languages * LENGTH_BINS)
    documents = _documents_by_sentences(sentences)
    labels = {
        str(label): by_language(language[plan.label == label], languages) for label in np.unique(plan.label)
    }
    return {
        name: InstanceCounts(
            **{column: int(values[code]) for column, values in columns.items()},
            left_over=_at(plan.left_over, code),
            labels=_at(labels, code),
            events=_at(plan.events, code),
            lengths=lengths[code * LENGTH_BINS : (code + 1) * LENGTH_BINS].tolist(),
            document_sentences=documents[code].tolist(),
        )
        for code, name in enumerate(sentences.languages)
    }


def _at(named: Mapping[str, Ints], code: int) -> dict[str, int]:
    return {name: int(values[code]) for name, values in named.items()}


def _documents_by_sentences(sentences: Sentences) -> Ints:
    """[languages, bins] documents with text by the power of two of their sentences."""
    count = sentences.stop - sentences.first
    filled = count > 0
    # frexp gives the exponent exactly; log2 may round.
    power = np.minimum(np.frexp(count[filled].astype(np.float64))[1] - 1, _SENTENCE_BINS - 1)
    bins = sentences.language[filled] * _SENTENCE_BINS + power
    languages = len(sentences.languages)
    return by_language(bins, languages * _SENTENCE_BINS).reshape(languages, _SENTENCE_BINS)


def _document_columns(
    bucket: BucketDocuments, sentences: Sentences, unknown_id: int, continuation: Flags
) -> dict[str, Ints]:
    """Counts of what came in: [languages] each."""
    languages = len(sentences.languages)
    bounds = bucket.sentence_offsets[bucket.document_offsets]
    tokens = np.diff(bounds)
    amounts: dict[str, npt.NDArray[np.integer]] = {
        "empty_documents": (tokens == 0).astype(np.int64),
        "sentences": np.diff(bucket.document_offsets),
        "sentences_cut": sentences.cut,
        "sentence_pieces": sentences.pieces,
        "tokens_in": tokens,
        "tokens_unknown": _within(bounds, bucket.token_ids == unknown_id),
        "words_in": tokens - _within(bounds, continuation[bucket.token_ids]),
    }
    columns = {name: by_language(sentences.language, languages, amount) for name, amount in amounts.items()}
    columns["documents"] = by_language(sentences.language, languages)
    return columns


def _within(bounds: Ints, chosen: Flags) -> Ints:
    """[D] how many of the chosen tokens lie within each document."""
    return np.diff(np.searchsorted(np.flatnonzero(chosen), bounds))


def _row_columns(sentences: Sentences, plan: RowPlan, tokens_in: Ints) -> dict[str, Ints]:
    """Counts of what became of it: [languages] each."""
    languages = len(sentences.languages)
    language = sentences.language[plan.document]
    amounts = {
        "tokens_used": plan.used,
        "tokens_cut": plan.taken - plan.used,
        "tokens_reused": plan.reused,
        "row_tokens": plan.lengths(),
    }
    columns = {name: by_language(language, languages, amount) for name, amount in amounts.items()}
    columns["rows"] = by_language(language, languages)
    seen = _tokens_seen(plan, language, languages) if plan.reused.any() else columns["tokens_used"]
    columns["tokens_unseen"] = tokens_in - seen
    return columns


def _tokens_seen(plan: RowPlan, language: Ints, languages: int) -> Ints:
    """[languages] tokens that at least one row holds: the length of the union of all segments."""
    start = np.concatenate([plan.a_start, plan.b_start])
    stop = np.concatenate([plan.a_stop, plan.b_stop])
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(stop[order])
    before = np.concatenate([[0], reach[:-1]])
    gain = np.maximum(0, stop[order] - np.maximum(start[order], before))
    return by_language(np.concatenate([language, language])[order], languages, gain)
