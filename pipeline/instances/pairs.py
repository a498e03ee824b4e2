"""Segment pairs of a bucket: next sentence prediction and sentence order prediction.

The procedure follows google-research/bert. It gathers whole sentences until they reach a target length. A is
a random share of them. B is the rest, or a range of another document. Cuts at a random end shorten the longer
segment until the pair fits. Sentences that a random B displaced start the next pair. The deliberate
differences:

- The key of each draw is the sentence at which the pair starts. So all possible pairs are planned together,
  and the walk through a document only picks those that it reaches.
- The short target is drawn for each pair, not once for a document. Otherwise a long document with a short
  target would flood the set with short pairs.
- P(random next) is one half. The original makes every chunk of one sentence random. Here a chunk has at least
  two sentences while the document has them. When the last sentence of a document is alone and its B is not
  random, it becomes B, and the previous sentence is A again. Only a document of one sentence has no true next
  sentence, so its B is always random.
- A random B comes from another document (another key, not another copy) of the same language. If a language
  has one document in the bucket, B is the true next segment.
- Sentence order prediction swaps A and B and never uses another document (ALBERT mixes both under one label).
  A document of one sentence has no order, so its tokens are left over.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.instances.bucket import Sentences
from pipeline.instances.row_plan import (
    CUT_A,
    CUT_B,
    NEXT,
    PARTNER,
    PARTNER_START,
    SPLIT,
    RowPlan,
    by_language,
    targets,
    walk,
)
from schemas.arrays import I64, Flags
from schemas.masking.targets import Keys
from schemas.randomness import below, draws, uniform


@dataclass
class _Pairs:
    """Pairs under construction. Segments are ranges of sentences [start, stop)."""

    begin: I64
    a_first: I64
    a_stop: I64
    b_first: I64
    b_stop: I64
    chance: Flags
    """Whether the draw makes the pair random (nsp) or swapped (sop)."""
    random: Flags
    """Whether B comes from another document."""
    alone: Flags
    """Whether the pair starts at the last sentence of its document."""
    target: I64
    key: Keys


def plan_pairs(sentences: Sentences, max_seq_length: int, short_probability: float, swap: bool) -> RowPlan:
    """Rows ``[CLS] A [SEP] B [SEP]`` of at most ``max_seq_length``. ``swap`` selects sentence order
    prediction.
    """
    longest = max_seq_length - 3
    has_partner = np.zeros(sentences.first.size, np.bool_) if swap else _has_partner(sentences)
    pairs = _reached_pairs(sentences, longest, short_probability, has_partner)
    document = sentences.document[pairs.begin]
    lone_document = pairs.alone & (pairs.begin == sentences.first[document])
    dropped = lone_document & ~pairs.random
    left_over, events = _notes(
        sentences, pairs, dropped, swap=swap, has_partner=has_partner, lone_document=lone_document
    )
    pairs = _subset(pairs, ~dropped)
    if not swap:
        _draw_partners(sentences, pairs)
    plan = _cut_to_length(sentences, pairs, longest)
    plan.left_over, plan.events = left_over, events
    if swap:
        _swap(plan, pairs.chance)
    return plan


def _reached_pairs(
    sentences: Sentences, longest: int, short_probability: float, has_partner: Flags
) -> _Pairs:
    """Plans the pair that would start at each sentence, then walks over those that do start."""
    keys = sentences.row_keys
    offsets, document = sentences.offsets, sentences.document
    begin = np.arange(document.size)
    last = sentences.stop[document]
    target = targets(keys, longest, short_probability)
    stop = np.minimum(np.searchsorted(offsets, offsets[:-1] + target), last)
    stop = np.maximum(stop, np.minimum(begin + 2, last))
    count = stop - begin
    a_count = 1 + below(np.maximum(count - 1, 1), keys, SPLIT)
    alone = count == 1
    chance = uniform(keys, NEXT) < 0.5
    lone_document = alone & (begin == sentences.first[document])
    random = has_partner[document] & (chance | lone_document)
    reached = walk(np.where(random, begin + a_count, stop))
    step_back = alone & ~random & ~lone_document
    a_first = np.where(step_back, begin - 1, begin)
    a_stop = np.where(step_back, begin, begin + a_count)
    pairs = _Pairs(begin, a_first, a_stop, a_stop, stop, chance, random, alone, target, keys)
    return _subset(pairs, reached)


def _subset(pairs: _Pairs, rows: npt.NDArray[np.integer] | Flags) -> _Pairs:
    return _Pairs(*(getattr(pairs, name)[rows] for name in _Pairs.__dataclass_fields__))


def _notes(
    sentences: Sentences,
    pairs: _Pairs,
    dropped: Flags,
    *,
    swap: bool,
    has_partner: Flags,
    lone_document: Flags,
) -> tuple[dict[str, I64], dict[str, I64]]:
    """Tokens in no pair by reason, and how often each event happened, by language."""
    document = sentences.document[pairs.begin]
    language = sentences.language[document]
    languages = len(sentences.languages)
    size = sentences.offsets[pairs.begin + 1] - sentences.offsets[pairs.begin]
    reason = "one_sentence_document" if swap else "no_partner"
    left_over = {reason: by_language(language[dropped], languages, size[dropped])}
    events = {
        "one_sentence_documents": by_language(language[lone_document], languages),
        "repeated_a": by_language(language[pairs.alone & ~pairs.random & ~lone_document], languages),
    }
    if not swap:
        refused = (pairs.chance | lone_document) & ~has_partner[document]
        events["no_random_partner"] = by_language(language[refused], languages)
    return left_over, events


def _language_order(sentences: Sentences) -> I64:
    """Documents with text, ordered by language, then identity, then copy (by the document's key)."""
    filled = np.flatnonzero(sentences.stop > sentences.first)
    columns = (sentences.document_key, sentences.identity, sentences.language)
    return filled[np.lexsort([column[filled] for column in columns])]


def _groups(sorted_values: npt.NDArray[np.generic]) -> tuple[I64, I64]:
    """For every element of a sorted array, where its run of equal values starts and ends."""
    starts = np.flatnonzero(np.concatenate([[True], sorted_values[1:] != sorted_values[:-1]]))
    stops = np.append(starts[1:], sorted_values.size)
    return np.repeat(starts, stops - starts), np.repeat(stops, stops - starts)


def _has_partner(sentences: Sentences) -> Flags:
    """[D] whether another document of the same language has text."""
    order = _language_order(sentences)
    has_partner = np.zeros(sentences.first.size, np.bool_)
    if order.size:
        language_start, language_stop = _groups(sentences.language[order])
        same_start, same_stop = _groups(sentences.identity[order])
        has_partner[order] = (same_stop - same_start) < (language_stop - language_start)
    return has_partner


def _draw_partners(sentences: Sentences, pairs: _Pairs) -> None:
    """Draws the B of the random pairs: another document and one of its sentences, both uniformly."""
    rows = np.flatnonzero(pairs.random)
    if rows.size == 0:
        return
    order = _language_order(sentences)
    language_start, language_stop = _groups(sentences.language[order])
    same_start, same_stop = _groups(sentences.identity[order])
    place = np.empty(sentences.first.size, np.int64)
    place[order] = np.arange(order.size)
    own = place[sentences.document[pairs.begin[rows]]]
    others = (language_stop - language_start)[own] - (same_stop - same_start)[own]
    drawn = language_start[own] + below(others, pairs.key[rows], PARTNER)
    drawn += np.where(drawn >= same_start[own], (same_stop - same_start)[own], 0)
    partner = order[drawn]
    first, stop = sentences.first[partner], sentences.stop[partner]
    start = first + below(stop - first, pairs.key[rows], PARTNER_START)
    offsets = sentences.offsets
    a_tokens = offsets[pairs.a_stop[rows]] - offsets[pairs.a_first[rows]]
    wanted = np.maximum(pairs.target[rows] - a_tokens, 1)
    pairs.b_first[rows] = start
    pairs.b_stop[rows] = np.minimum(np.searchsorted(offsets, offsets[start] + wanted), stop)


def _cut_to_length(sentences: Sentences, pairs: _Pairs, longest: int) -> RowPlan:
    """The pairs as ranges of tokens, cut so that A and B together have at most ``longest``."""
    offsets = sentences.offsets
    a_start, a_stop = offsets[pairs.a_first], offsets[pairs.a_stop]
    b_start, b_stop = offsets[pairs.b_first], offsets[pairs.b_stop]
    a_size, b_size = a_stop - a_start, b_stop - b_start
    step_back = pairs.a_first < pairs.begin
    own_a, own_b = ~step_back, ~pairs.random
    owned = np.where(own_a, a_size, 0) + np.where(own_b, b_size, 0)
    excess = np.maximum(a_size + b_size - longest, 0)
    # The longer segment loses the difference, then both lose tokens in turn, B first.
    a_cut = np.minimum(excess, np.maximum(a_size - b_size, 0))
    b_cut = np.minimum(excess, np.maximum(b_size - a_size, 0))
    rest = excess - a_cut - b_cut
    a_cut, b_cut = a_cut + rest // 2, b_cut + (rest + 1) // 2
    a_front, b_front = _coin_flips(a_cut, pairs.key, CUT_A), _coin_flips(b_cut, pairs.key, CUT_B)
    a_kept, b_kept = a_size - a_cut, b_size - b_cut
    return RowPlan(
        ids=sentences.ids,
        a_start=a_start + a_front,
        a_stop=a_start + a_front + a_kept,
        b_start=b_start + b_front,
        b_stop=b_start + b_front + b_kept,
        label=pairs.random.astype(np.int8),
        document=sentences.document[pairs.begin],
        key=pairs.key,
        owned=owned,
        used=np.where(own_a, a_kept, 0) + np.where(own_b, b_kept, 0),
        reused=np.where(own_a, 0, a_kept) + np.where(own_b, 0, b_kept),
    )


def _coin_flips(number: I64, keys: Keys, purpose: int) -> I64:
    """[R] heads in ``number`` fair tosses. Heads cuts a token from the front, tails from the back."""
    heads = np.zeros(number.size, np.int64)
    block = 0
    open_rows = np.flatnonzero(number > 0)
    while open_rows.size:
        tosses = np.minimum(number[open_rows] - 64 * block, 64).astype(np.uint64)
        bits = draws(keys[open_rows], purpose, block) >> (np.uint64(64) - tosses)
        heads[open_rows] += np.bitwise_count(bits)
        block += 1
        open_rows = open_rows[number[open_rows] > 64 * block]
    return heads


def _swap(plan: RowPlan, swapped: Flags) -> None:
    """Swaps A and B in the drawn rows, and sets the label."""
    plan.label = swapped.astype(np.int8)
    old = (plan.a_start, plan.a_stop, plan.b_start, plan.b_stop)
    plan.a_start, plan.b_start = np.where(swapped, old[2], old[0]), np.where(swapped, old[0], old[2])
    plan.a_stop, plan.b_stop = np.where(swapped, old[3], old[1]), np.where(swapped, old[1], old[3])
