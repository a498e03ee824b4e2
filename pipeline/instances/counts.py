"""Counts the tokens of a bucket by language and outcome."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pipeline.instances.bucket import BucketDocuments, Sentences
from pipeline.instances.row_plan import RowPlan, by_language
from schemas.arrays import I64, Flags
from schemas.instance_counts import LENGTH_BINS, SENTENCE_BINS, InstanceCounts

# Raise it when the counts change, so that a resumed build remakes slots with other counts.
COUNTS_VERSION = 3


def add_counts(total: dict[str, InstanceCounts], more: Mapping[str, InstanceCounts]) -> None:
    """Adds the counts of a bucket, by language, to those in ``total``."""
    for lang, counts in more.items():
        total.setdefault(lang, InstanceCounts()).add(counts)


def pair_warnings(by_language: Mapping[str, InstanceCounts]) -> list[str]:
    """One line for each language of a set whose documents mostly have a single sentence.

    Such documents have no true next sentence. Usually their source has blank lines or rows that do not mark
    the end of a document.
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
    masks: list[I64],
    *,
    max_seq_length: int,
    unknown_id: int,
    continuation: Flags,
) -> dict[str, InstanceCounts]:
    """The counts of a bucket by language.

    ``masks`` has an array [3, languages] for each block of rows: targets, targets replaced by [MASK],
    unchanged targets. ``continuation`` [vocabulary] is true for subwords that continue a word.
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


def _at(named: Mapping[str, I64], code: int) -> dict[str, int]:
    return {name: int(values[code]) for name, values in named.items()}


def _documents_by_sentences(sentences: Sentences) -> I64:
    """[languages, bins] documents with text by the power of two of their sentences."""
    count = sentences.stop - sentences.first
    filled = count > 0
    # frexp gives the exact exponent, whereas log2 may round.
    power = np.minimum(np.frexp(count[filled].astype(np.float64))[1] - 1, SENTENCE_BINS - 1)
    bins = sentences.language[filled] * SENTENCE_BINS + power
    languages = len(sentences.languages)
    return by_language(bins, languages * SENTENCE_BINS).reshape(languages, SENTENCE_BINS)


def _document_columns(
    bucket: BucketDocuments, sentences: Sentences, unknown_id: int, continuation: Flags
) -> dict[str, I64]:
    """Counts of the input: [languages] each."""
    languages = len(sentences.languages)
    bounds = bucket.sentence_offsets[bucket.document_offsets]
    tokens = np.diff(bounds)
    amounts: dict[str, npt.NDArray[np.integer]] = {
        "empty_documents": (tokens == 0).astype(np.int64),
        "sentences": np.diff(bucket.document_offsets),
        "sentences_cut": sentences.cut,
        "sentence_parts": sentences.parts,
        "tokens_in": tokens,
        "tokens_unknown": _within(bounds, bucket.token_ids == unknown_id),
        "words_in": tokens - _within(bounds, continuation[bucket.token_ids]),
    }
    columns = {name: by_language(sentences.language, languages, amount) for name, amount in amounts.items()}
    columns["documents"] = by_language(sentences.language, languages)
    return columns


def _within(bounds: I64, chosen: Flags) -> I64:
    """[D] the number of chosen tokens in each document."""
    return np.diff(np.searchsorted(np.flatnonzero(chosen), bounds))


def _row_columns(sentences: Sentences, plan: RowPlan, tokens_in: I64) -> dict[str, I64]:
    """Counts of the output: [languages] each."""
    languages = len(sentences.languages)
    language = sentences.language[plan.document]
    amounts = {
        "tokens_used": plan.used,
        "tokens_cut": plan.owned - plan.used,
        "tokens_reused": plan.reused,
        "sequence_tokens": plan.lengths(),
    }
    columns = {name: by_language(language, languages, amount) for name, amount in amounts.items()}
    columns["sequences"] = by_language(language, languages)
    seen = _tokens_seen(plan, language, languages) if plan.reused.any() else columns["tokens_used"]
    columns["tokens_unseen"] = tokens_in - seen
    return columns


def _tokens_seen(plan: RowPlan, language: I64, languages: int) -> I64:
    """[languages] tokens that at least one row holds: the length of the union of all segments."""
    start = np.concatenate([plan.a_start, plan.b_start])
    stop = np.concatenate([plan.a_stop, plan.b_stop])
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(stop[order])
    before = np.concatenate([[0], reach[:-1]])
    gain = np.maximum(0, stop[order] - np.maximum(start[order], before))
    return by_language(np.concatenate([language, language])[order], languages, gain)
