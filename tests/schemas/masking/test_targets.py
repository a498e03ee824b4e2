"""The masked-LM rule: what may be masked, how much, in which units, and what replaces it."""

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CorpusError
from schemas.masking.targets import (
    MaskedRows,
    MaskingRule,
    MaskingVocabulary,
    MaskUnit,
    Rows,
    mask_rows,
    offsets_of,
    sample_keys,
    unmask_rows,
)
from schemas.randomness import draws

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]",
    *(f"w{number}" for number in range(200)), *(f"##p{number}" for number in range(100)),
]  # fmt: skip
UNK, CLS, SEP, MASK = 1, 2, 3, 4
WORD, PIECE = 7, 207
VOCABULARY = MaskingVocabulary.from_pieces(PIECES)
UNITS: tuple[MaskUnit, ...] = get_args(MaskUnit)


def rows_of(texts: list[list[int]], seed: int = 1) -> Rows:
    """Rows ``[CLS] text [SEP]``."""
    framed = [[CLS, *text, SEP] for text in texts]
    ids = np.array([token for row in framed for token in row], np.int32)
    offsets = offsets_of(np.array([len(row) for row in framed], np.int64))
    return Rows(ids, offsets, draws(seed, np.arange(len(texts))))


def split(masked: MaskedRows) -> list[list[int]]:
    bounds = masked.position_offsets
    return [masked.positions[bounds[row] : bounds[row + 1]].tolist() for row in range(bounds.size - 1)]


def full_rows(count: int, length: int, word: int = 1, seed: int = 1) -> Rows:
    """Rows of ``length`` text pieces in words of ``word`` pieces."""
    rng = np.random.default_rng(seed)
    text = rng.integers(WORD, WORD + 200, (count, length))
    inner = np.arange(length) % word != 0
    text[:, inner] = rng.integers(PIECE, PIECE + 100, (count, int(inner.sum())))
    return rows_of(text.tolist(), seed)


TEXTS = st.lists(st.lists(st.integers(1, len(PIECES) - 1), min_size=1, max_size=40), min_size=1, max_size=12)
RULES = st.builds(
    MaskingRule,
    unit=st.sampled_from(UNITS),
    probability=st.sampled_from([0.01, 0.15, 0.4, 0.9]),
    max_predictions=st.integers(1, 20),
    mask_share=st.sampled_from([0.0, 0.8, 1.0]),
    random_share=st.just(0.0),
)


@given(TEXTS, RULES, st.integers(0, 2**63 - 1))
@settings(max_examples=150, deadline=None)
def test_targets_are_pieces_and_their_labels_restore_the_row(
    texts: list[list[int]], rule: MaskingRule, seed: int
) -> None:
    rows = rows_of(texts, seed)
    masked = mask_rows(rows, rule, VOCABULARY)
    restored = unmask_rows(
        masked.input_ids, rows.offsets, masked.positions, masked.position_offsets, masked.labels
    )
    assert np.array_equal(restored, rows.ids)
    assert not VOCABULARY.blocked[masked.labels].any()
    for number, positions in enumerate(split(masked)):
        row = rows.ids[rows.offsets[number] : rows.offsets[number + 1]]
        assert positions == sorted(set(positions))
        present = int((~VOCABULARY.blocked[row]).sum())
        assert len(positions) >= min(1, present)
        assert len(positions) <= rule.max_predictions
    changed = np.flatnonzero(masked.input_ids != rows.ids)
    assert set(masked.input_ids[changed].tolist()) <= {MASK}
    if rule.mask_share == 0:
        assert changed.size == 0


@given(TEXTS, RULES, st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_the_masks_of_a_row_do_not_depend_on_its_batch(
    texts: list[list[int]], rule: MaskingRule, pick: int
) -> None:
    rows = rows_of(texts)
    together = split(mask_rows(rows, rule, VOCABULARY))
    number = pick % len(texts)
    alone = Rows(
        rows.ids[rows.offsets[number] : rows.offsets[number + 1]],
        offsets_of(np.diff(rows.offsets)[number : number + 1]),
        rows.keys[number : number + 1],
    )
    assert split(mask_rows(alone, rule, VOCABULARY)) == [together[number]]


@pytest.mark.parametrize("unit", UNITS)
def test_many_rows_are_masked_in_blocks_as_in_one(unit: MaskUnit) -> None:
    rows = full_rows(3000, 100, word=2)
    rule = MaskingRule(unit=unit)
    masked = mask_rows(rows, rule, VOCABULARY)
    tail = Rows(rows.ids[2500 * 102 :], rows.offsets[2500:] - 2500 * 102, rows.keys[2500:])
    again = mask_rows(tail, rule, VOCABULARY)
    assert np.array_equal(again.input_ids, masked.input_ids[2500 * 102 :])
    assert split(again) == split(masked)[2500:]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("length", [2, 18, 60, 126, 510])
def test_fifteen_percent_within_the_limit(unit: MaskUnit, length: int) -> None:
    rule = MaskingRule(unit=unit, max_predictions=40)
    counts = Counter(len(each) for each in split(mask_rows(full_rows(400, length), rule, VOCABULARY)))
    budget = min(40, max(1, round((length + 2) * 0.15)))
    # Words are single pieces here, so that every unit can fill the budget to the last piece.
    assert counts == {budget: 400}


def test_replacements_are_80_10_10_and_never_special() -> None:
    rows = full_rows(20_000, 126)
    masked = mask_rows(rows, MaskingRule(unit="token"), VOCABULARY)
    shown = masked.input_ids[
        np.repeat(rows.offsets[:-1], np.diff(masked.position_offsets)) + masked.positions
    ]
    by_mask, kept = shown == MASK, shown == masked.labels
    assert by_mask.mean() == pytest.approx(0.8, abs=0.005)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 300, abs=0.005)
    random = shown[~by_mask & ~kept]
    assert set(random.tolist()) == set(range(WORD, len(PIECES)))
    frequencies = np.bincount(random, minlength=len(PIECES))[WORD:] / random.size
    assert frequencies == pytest.approx(np.full(300, 1 / 300), abs=0.0012)


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.3), (0.0, 0.0)])
def test_the_shares_can_be_changed(shares: tuple[float, float]) -> None:
    rows = full_rows(1000, 126)
    rule = MaskingRule(unit="token", mask_share=shares[0], random_share=shares[1])
    masked = mask_rows(rows, rule, VOCABULARY)
    shown = masked.input_ids[
        np.repeat(rows.offsets[:-1], np.diff(masked.position_offsets)) + masked.positions
    ]
    assert (shown == MASK).mean() == pytest.approx(shares[0], abs=0.015)
    kept = 1 - sum(shares) + shares[1] / 300
    assert (shown == masked.labels).mean() == pytest.approx(kept, abs=0.015)


def test_unknown_is_a_target_only_where_asked_for() -> None:
    rows = rows_of([[UNK, WORD, UNK, WORD + 1] * 8] * 50)
    for unit in UNITS:
        rule = MaskingRule(unit=unit, probability=0.8)
        assert UNK not in mask_rows(rows, rule, VOCABULARY).labels
        asked = MaskingVocabulary.from_pieces(PIECES, predict_unknown=True)
        labels = mask_rows(rows, rule, asked).labels
        assert UNK in labels
        assert not np.isin(labels, [0, CLS, SEP, MASK]).any()


def test_a_row_of_unknowns_has_no_target() -> None:
    rows = rows_of([[UNK, UNK], [WORD]])
    for unit in UNITS:
        masked = mask_rows(rows, MaskingRule(unit=unit), VOCABULARY)
        assert split(masked) == [[], [1]]


def test_no_rows() -> None:
    rows = Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.uint64))
    masked = mask_rows(rows, MaskingRule(), VOCABULARY)
    assert masked.positions.size == masked.input_ids.size == 0
    assert masked.position_offsets.tolist() == [0]


def test_words_are_masked_whole_and_end_at_a_separator() -> None:
    text = [WORD, PIECE, PIECE + 1, WORD + 1, SEP, PIECE + 2, WORD + 2, PIECE + 3]
    rows = rows_of([text] * 4000)
    together: Counter[tuple[int, ...]] = Counter()
    for positions in split(mask_rows(rows, MaskingRule(unit="whole_word", probability=0.35), VOCABULARY)):
        together[tuple(positions)] += 1
    words = ({1, 2, 3}, {4}, {6}, {7, 8})
    for group in together:
        assert all(word <= set(group) or not word & set(group) for word in words)
    assert sum(count for positions, count in together.items() if (4 in positions) != (6 in positions)) > 100


def test_where_no_word_fits_one_is_masked_all_the_same() -> None:
    rows = rows_of([[WORD, PIECE, PIECE] * 3] * 200)
    whole = mask_rows(rows, MaskingRule(unit="whole_word", max_predictions=3), VOCABULARY)
    # 15 % of 11 tokens is 2, but the words have 3 pieces. A word of up to max_predictions pieces stays whole.
    assert {tuple(each) for each in split(whole)} == {(1, 2, 3), (4, 5, 6), (7, 8, 9)}
    parted = mask_rows(rows, MaskingRule(unit="whole_word", max_predictions=2), VOCABULARY)
    assert {tuple(each) for each in split(parted)} == {(1, 2), (4, 5), (7, 8)}
    mixed = rows_of([[WORD, PIECE, PIECE, WORD, PIECE]] * 100)
    some = mask_rows(mixed, MaskingRule(unit="span", max_predictions=2), VOCABULARY)
    assert {tuple(each) for each in split(some)} == {(4, 5)}


def test_a_segmenter_gives_the_words_of_a_script_without_word_spaces() -> None:
    def in_pairs(ids: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        place = np.arange(ids.size) - np.repeat(offsets[:-1], np.diff(offsets))
        starts: np.ndarray[Any, Any] = place % 2 == 0
        return starts

    rows = full_rows(300, 40)
    masked = mask_rows(rows, MaskingRule(unit="whole_word"), VOCABULARY, in_pairs)
    for positions in split(masked):
        assert len(positions) == 6
        assert all(position + 1 in positions for position in positions if position % 2 == 1)
        assert all(position - 1 in positions for position in positions if position % 2 == 0)


def test_span_lengths_are_geometric_in_words() -> None:
    rows = full_rows(6000, 510)
    # At this low rate spans do not meet, and only the last one of a row reaches the budget.
    rule = MaskingRule(unit="span", probability=0.06, max_predictions=100)
    lengths: Counter[int] = Counter()
    for positions in split(mask_rows(rows, rule, VOCABULARY)):
        run = 1
        for before, after in zip(positions, [*positions[1:], -1], strict=True):
            if after == before + 1:
                run += 1
            else:
                lengths[run] += 1
                run = 1
    expected = 0.8 ** np.arange(10)
    expected /= expected.sum()
    found = np.array([lengths[length] for length in range(1, 11)]) / sum(lengths.values())
    assert found == pytest.approx(expected, abs=0.03)
    assert sum(count for length, count in lengths.items() if length > 10) < 0.08 * sum(lengths.values())


def test_spans_stop_at_separators_and_unknowns() -> None:
    rows = rows_of([[WORD, WORD, SEP, WORD, WORD, UNK, WORD, WORD]] * 3000)
    rule = MaskingRule(unit="span", probability=0.2, max_predictions=2, span_probability=0.01)
    found = {tuple(each) for each in split(mask_rows(rows, rule, VOCABULARY))}
    assert (1, 2) in found
    assert (4, 5) in found
    assert (7, 8) in found
    rest = MaskingRule(unit="ngram", probability=0.2, max_predictions=2)
    assert {(1, 2), (4, 5), (7, 8)} <= {tuple(each) for each in split(mask_rows(rows, rest, VOCABULARY))}


def test_a_span_is_replaced_in_one_way() -> None:
    rows = full_rows(2000, 126)
    rule = MaskingRule(
        unit="span", span_probability=0.01, max_span=5, probability=0.04, mask_share=0.5, random_share=0.0
    )
    masked = mask_rows(rows, rule, VOCABULARY)
    flat = np.repeat(rows.offsets[:-1], np.diff(masked.position_offsets)) + masked.positions
    hidden = masked.input_ids[flat] == MASK
    per_row = [
        hidden[lo:hi]
        for lo, hi in zip(masked.position_offsets[:-1], masked.position_offsets[1:], strict=True)
    ]
    spans = [each for each, positions in zip(per_row, split(masked), strict=True)
             if len(positions) == 5 and positions[-1] == positions[0] + 4]  # fmt: skip
    assert len(spans) > 300
    assert sum(each.all() or not each.any() for each in spans) / len(spans) > 0.95


def test_ngrams_are_as_likely_as_one_over_their_length() -> None:
    rows = full_rows(8000, 126)
    rule = MaskingRule(unit="ngram", probability=0.024, max_predictions=3)
    first: Counter[int] = Counter()
    for positions in split(mask_rows(rows, rule, VOCABULARY)):
        if len(positions) == 3 and positions[2] == positions[0] + 2:
            first[3] += 1
        else:
            first[0] += 1
    # Three adjacent pieces are one trigram or, rarely, separate groups that touch.
    assert first[3] / 8000 == pytest.approx((1 / 3) / (1 + 1 / 2 + 1 / 3), abs=0.03)


def test_dynamic_masks_come_from_seed_epoch_and_sample_alone() -> None:
    rows = full_rows(500, 126, word=2)
    static = mask_rows(rows, MaskingRule(), VOCABULARY)
    plain = unmask_rows(
        static.input_ids, rows.offsets, static.positions, static.position_offsets, static.labels
    )
    samples = np.arange(1000, 1500)
    first = mask_rows(Rows(plain, rows.offsets, sample_keys(3, 0, samples)), MaskingRule(), VOCABULARY)
    again = mask_rows(Rows(plain, rows.offsets, sample_keys(3, 0, samples)), MaskingRule(), VOCABULARY)
    later = mask_rows(Rows(plain, rows.offsets, sample_keys(3, 1, samples)), MaskingRule(), VOCABULARY)
    assert np.array_equal(first.input_ids, again.input_ids)
    same = sum(a == b for a, b in zip(split(first), split(later), strict=True))
    assert same == 0
    assert sample_keys(3, 0, samples)[7] == sample_keys(3, 0, np.array([1007]))[0]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"\[MASK\] is missing"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"], "contains only special tokens"),
    ],
)
def test_a_vocabulary_that_cannot_mask_is_refused(pieces: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        MaskingVocabulary.from_pieces(pieces)
