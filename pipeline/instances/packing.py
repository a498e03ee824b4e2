"""Packs whole sentences up to the maximum length into rows without sentence pairs (RoBERTa).

``doc_sentences`` stops at the end of a document. ``full_sentences`` continues with the next document of the
same language in random order, with a [SEP] between them. This [SEP] counts as a token of the row, and no row
starts or ends with one. As with pairs, a share of the rows has a shorter target length. No tokens are cut or
left over, because sentences over the limit have already been cut into parts.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.instances.bucket import Sentences
from pipeline.instances.row_plan import RowPlan, targets, walk
from schemas.arrays import I64, Flags
from schemas.labels import NO_LABEL
from schemas.masking.targets import Ids, Keys, Offsets, offsets_of


@dataclass(frozen=True)
class _Items:
    """The items to pack: sentences and, between documents, separators. I items, T tokens."""

    ids: Ids
    """[T]"""
    offsets: Offsets
    """[I + 1] into ``ids``."""
    document: I64
    """[I]"""
    last: I64
    """[I] one past the last item that may share a row with the item."""
    key: Keys
    """[I] random key of a row that starts here."""
    target: I64
    """[I] target length of such a row in tokens."""
    separator: Flags | None
    """[I] true for a separator. None without separators."""


def plan_packed(
    sentences: Sentences, max_seq_length: int, short_probability: float, cross_documents: bool, sep_id: int
) -> RowPlan:
    """Rows ``[CLS] text [SEP]`` of at most ``max_seq_length``."""
    keys = sentences.row_keys
    target = targets(keys, max_seq_length - 2, short_probability)
    if not cross_documents:
        last = sentences.stop[sentences.document]
        items = _Items(sentences.ids, sentences.offsets, sentences.document, last, keys, target, None)
        return _plan(items)
    return _plan_crossing(sentences, target, keys, sep_id)


def _plan_crossing(sentences: Sentences, target: I64, keys: Keys, sep_id: int) -> RowPlan:
    """Concatenates the documents of each language with a separator after each, and packs them."""
    filled = np.flatnonzero(sentences.stop > sentences.first)
    order = filled[np.lexsort((sentences.document_key[filled], sentences.language[filled]))]
    counts = (sentences.stop - sentences.first)[order]
    # Items: the sentences of a document, then its separator.
    item_document = np.repeat(order, counts + 1)
    places = np.cumsum(counts + 1) - 1
    separator = np.zeros(item_document.size, np.bool_)
    separator[places] = True
    sentence = np.repeat(sentences.first[order] - (places - counts), counts + 1)
    sentence += np.arange(sentence.size)
    sentence[separator] = 0
    size = np.where(separator, 1, np.diff(sentences.offsets)[sentence])
    offsets = offsets_of(size)
    delta = np.repeat(np.where(separator, 0, sentences.offsets[sentence]) - offsets[:-1], size)
    ids = sentences.ids[np.maximum(delta + np.arange(delta.size), 0)]
    ids[offsets[:-1][separator]] = sep_id
    language = sentences.language[item_document]
    last = np.searchsorted(language, language, side="right")
    return _plan(_Items(ids, offsets, item_document, last, keys[sentence], target[sentence], separator))


def _plan(items: _Items) -> RowPlan:
    """Packs greedily: at least one item, and as many as fit the target length and range of the first one."""
    offsets, separator = items.offsets, items.separator
    begin = np.arange(items.document.size)
    stop = np.searchsorted(offsets, offsets[:-1] + items.target, side="right") - 1
    stop = np.minimum(np.maximum(stop, begin + 1), items.last)
    if separator is not None:
        stop = np.where(separator, begin + 1, stop)
    reached = walk(stop)
    end = stop[reached]
    used = offsets[end] - offsets[reached]
    if separator is not None:
        end = end - separator[end - 1]
        before = np.concatenate([[0], np.cumsum(separator)])
        used = offsets[end] - offsets[reached] - (before[end] - before[reached])
        kept = used > 0
        reached, end, used = reached[kept], end[kept], used[kept]
    nothing = offsets[end]
    return RowPlan(
        ids=items.ids,
        a_start=offsets[reached],
        a_stop=offsets[end],
        b_start=nothing,
        b_stop=nothing,
        label=np.full(reached.size, NO_LABEL, np.int8),
        document=items.document[reached],
        key=items.key[reached],
        owned=used,
        used=used,
        reused=np.zeros(reached.size, np.int64),
    )
