"""Keeps a sentence together across quotations and brackets inside it, even if these contain end marks."""

import re
from bisect import bisect_right

_MARK = re.compile('["“”„«»「」『』《》()\\[\\]（）]')
_PAIRS = {"「": "」", "『": "』", "《": "》", "(": ")", "[": "]", "（": "）"}
_CLOSERS = frozenset(_PAIRS.values())
_OPEN_CLOSED_IN_ASCII = ['""', "()", "[]"]
_OPEN_CLOSED = ['""', "””", "“”", "„“", "«»", "»«", "()", "[]", "（）", "「」", "『』", "《》"]
_BEFORE_OPENING = frozenset("([{—–-:,'’„“«\u200e\u200f")
_DIRECTED = frozenset(["“”", "„“", "„”", "«»", "»«"])
_LONGEST_QUOTATION, _LONGEST_BRACKET = 60, 200
"""Longer quotations are cut at their sentences."""
_IDEOGRAPHS_SHORTER = 3


def without_cuts_in_quotations(text: str, cuts: list[int]) -> list[int]:
    """``cuts`` without those inside a quotation that is only a part of its sentence."""
    if not _is_cut_open(text, cuts):
        return cuts
    removed: set[int] = set()
    for start, end in _quotations(text):
        first, last = bisect_right(cuts, start), bisect_right(cuts, end)
        if first < last and _is_part_of_sentence(text, cuts, removed, first, last, (start, end)):
            removed.update(cuts[first:last])
    return [cut for cut in cuts if cut not in removed] if removed else cuts


def _is_cut_open(text: str, cuts: list[int]) -> bool:
    """Whether a cut may be inside a pair. A fast test without false negatives."""
    for pair in _OPEN_CLOSED_IN_ASCII if text.isascii() else _OPEN_CLOSED:
        opening, closing = pair[0], pair[1]
        if opening not in text:
            continue
        begin = 0
        for cut in cuts:
            if opening == closing:
                if text.count(opening, begin, cut) % 2:
                    return True
            elif text.rfind(opening, begin, cut) > text.rfind(closing, begin, cut):
                return True
            begin = cut
    return False


def _is_part_of_sentence(
    text: str, cuts: list[int], removed: set[int], first: int, last: int, pair: tuple[int, int]
) -> bool:
    """Whether words of the same sentence surround the quotation that contains ``cuts[first:last]``."""
    start, end = pair
    if first and cuts[first - 1] in removed:
        return True
    if any(sign.isalnum() for sign in text[cuts[first - 1] if first else 0 : start]):
        return True
    behind = text[end + 1 : cuts[last] if last < len(cuts) else len(text)]
    return any(sign.isalnum() for sign in behind)


def _quotations(text: str) -> list[tuple[int, int]]:
    """(position of the opening mark, position of the closing mark) of short quotations, ordered by end."""
    quotations = []
    opened: dict[str, int] = {}
    for match in _MARK.finditer(text):
        mark, place = match.group(), match.start()
        if mark in _PAIRS:
            opened[_PAIRS[mark]] = place
            continue
        key = mark if mark in _CLOSERS else "quotation"
        start = opened.get(key)
        if start is not None and (key is mark or _closes(text, start, place)):
            del opened[key]
            longest = _LONGEST_BRACKET if mark in ")]）" else _LONGEST_QUOTATION
            if place and text[place - 1] >= "\u2e80":
                longest //= _IDEOGRAPHS_SHORTER
            if place - start <= longest:
                quotations.append((start, place))
        elif key == "quotation" and _opens(text, place):
            opened[key] = place
    return quotations


def _opens(text: str, place: int) -> bool:
    before, after = text[place - 1 : place] if place else " ", text[place + 1 : place + 2]
    starts = before.isspace() or before in _BEFORE_OPENING or before >= "\u2e80"
    return starts and (not after.isspace() or text[place] == "«")


def _closes(text: str, start: int, place: int) -> bool:
    pair = text[start] + text[place]
    if pair in _DIRECTED:
        return True
    return (
        text[start] == text[place]
        and not text[place + 1 : place + 2].isalnum()
        and not text[place - 1].isspace()
    )
