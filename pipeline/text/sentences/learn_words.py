"""Learns from plain text which words have a full stop inside a sentence, and which begin sentences.

The method follows Kiss and Strunk (Unsupervised Multilingual Sentence Boundary Detection, 2006). An
abbreviation usually has a full stop, and often no sentence starts after it. The method is deterministic, and
the counts do not depend on the order of the texts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_LEADING = "\"'’‘“”„‚«»‹›([{*†¿¡–—-"
_TRAILING = "\"'’”“»«)]}"
_WORD = re.compile("[^\\W\\d_]+(?:[.'’-][^\\W\\d_]+)*")
_ELISION = re.compile("[^\\W\\d_]{1,5}['’](?=[^\\W\\d_]{2})")
_VOWELS = frozenset("aeiouyàáâäåæèéêëìíîïòóôöøùúûüаеёиоуыэюяіїєαεηιουω")
_LONGEST_ABBREVIATION = 6
_LEAST = 8
"""Minimum occurrences of a word with a full stop to learn from it."""
_MAX_STARTERS = 150


@dataclass
class StopCounts:
    """How often a word has a full stop, by what follows."""

    lower: int = 0
    comma: int = 0
    digit: int = 0
    starter: int = 0
    other: int = 0
    last: int = 0
    following: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All occurrences with a full stop."""
        return self.lower + self.comma + self.digit + self.starter + self.other + self.last


@dataclass(frozen=True)
class LearnedWords:
    """Words of one language, sorted. See `pipeline.text.sentences.data.SentenceWords`."""

    abbreviations: tuple[str, ...]
    before_numbers: tuple[str, ...]
    starters: tuple[str, ...]
    ordinary: tuple[str, ...]
    """Words that often end a sentence and occur more often without a full stop."""


def learn(paragraphs: Iterable[str]) -> LearnedWords:
    """The words learned from the paragraphs of one language, each from at least several occurrences."""
    plain: Counter[str] = Counter()
    stops: dict[str, StopCounts] = {}
    begins: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for paragraph in paragraphs:
        _count(paragraph.split(), plain, stops, begins, inside)
    starters = _starters(begins, inside)
    known = set(starters)
    for counts in stops.values():
        counts.starter = sum(number for word, number in counts.following.items() if word in known)
        counts.other -= counts.starter

    def shaped(word: str) -> bool:
        # Without starters, a capital after a full stop may start a sentence or a name.
        return _shaped_like_one(word) and (bool(starters) or not word.islower())

    return LearnedWords(
        abbreviations=tuple(filter(shaped, _chosen(stops, plain, _is_abbreviation))),
        before_numbers=tuple(filter(shaped, _chosen(stops, plain, _is_before_numbers))),
        starters=tuple(sorted(starters)),
        ordinary=_chosen(stops, plain, _is_ordinary),
    )


def _count(
    tokens: list[str],
    plain: Counter[str],
    stops: dict[str, StopCounts],
    begins: Counter[str],
    inside: Counter[str],
) -> None:
    previous_ends, previous_sure = True, False
    for position, token in enumerate(tokens):
        core = token.lstrip(_LEADING)
        first = core[:1]
        if first.isupper():
            word = _first_word(core)
            if previous_sure:
                begins[word] += 1
            elif not previous_ends and core is token:
                inside[word] += 1
        bare = core.rstrip(_TRAILING)
        body = bare.rstrip(".!?…,;:")
        marks = bare[len(body) :]
        previous_ends = marks[:1] in (".", "!", "?", "…", ":", ";") or token[-1:] in _TRAILING
        previous_sure = marks[:1] in ("!", "?") or (
            marks == "." and len(body) >= 5 and body.islower() and body.isalpha()
        )
        if not _WORD.fullmatch(body) or len(body) > 20:
            continue
        word = body.lower()
        if marks[:1] != "." or marks.startswith(".."):
            plain[word] += 1
        else:
            counts = stops.setdefault(word, StopCounts())
            _count_stop(
                counts, marks, bare is core, tokens[position + 1] if position + 1 < len(tokens) else ""
            )


def _count_stop(counts: StopCounts, marks: str, open_ended: bool, following: str) -> None:
    next_core = following.lstrip(_LEADING)
    first = next_core[:1]
    if len(marks) > 1 or first in (",", ";", ":"):
        counts.comma += 1
    elif not first:
        counts.last += 1
    elif first.isdigit():
        counts.digit += 1
    elif first.islower() and not "\u10d0" <= first <= "\u10ff":
        counts.lower += 1
    elif open_ended or following:
        counts.other += 1
        counts.following[_first_word(next_core)] += 1


def _first_word(core: str) -> str:
    elision = _ELISION.match(core)
    if elision:
        return elision.group().lower()
    found = _WORD.match(core)
    return found.group().lower() if found else ""


def _starters(begins: Counter[str], inside: Counter[str]) -> list[str]:
    """The most common words that begin sentences and rarely have a capital elsewhere."""
    sure = sum(begins.values())
    at_least = max(4, sure // 2000)
    chosen = [
        (-number, word)
        for word, number in begins.items()
        if word and number >= at_least and number >= 2 * inside[word]
    ]
    return [word for _, word in sorted(chosen)[:_MAX_STARTERS]]


def _chosen(
    stops: dict[str, StopCounts], plain: Counter[str], test: Callable[[StopCounts, int], bool]
) -> tuple[str, ...]:
    return tuple(
        sorted(
            word
            for word, counts in stops.items()
            if counts.total >= _LEAST and len(word) >= 2 and test(counts, plain[word])
        )
    )


def _shaped_like_one(word: str) -> bool:
    """Abbreviations are short and end with a consonant. Dotted ones are recognized by their shape alone."""
    has_case = word.islower() and not "\u10d0" <= word[0] <= "\u10ff"
    is_thai = "\u0e00" <= word[0] <= "\u0e7f"
    return (
        (has_case or is_thai)
        and len(word) <= _LONGEST_ABBREVIATION
        and word.isalpha()
        and word[-1] not in _VOWELS
    )


def _is_abbreviation(counts: StopCounts, plain: int) -> bool:
    """A word mostly with a full stop that is mostly inside a sentence and rarely before a certain start."""
    goes_on = counts.lower + counts.comma + counts.digit
    ends, before_name = counts.starter + counts.last, counts.other
    if plain > counts.total or 4 * ends > ends + before_name:
        return False
    return 3 * goes_on >= counts.total or (
        counts.total >= 12 and 20 * ends <= counts.total and ends < before_name
    )


def _is_before_numbers(counts: StopCounts, plain: int) -> bool:
    """A word whose full stop mostly precedes a number."""
    return counts.digit >= 4 and 2 * counts.digit >= counts.total and not _is_abbreviation(counts, plain)


def _is_ordinary(counts: StopCounts, plain: int) -> bool:
    """A word mostly without a full stop, whose full stops mostly end a sentence."""
    goes_on = counts.lower + counts.comma + counts.digit
    return (
        plain >= 3 * counts.total
        and 4 * (counts.starter + counts.last) >= counts.total
        and 5 * goes_on <= counts.total
    )
