"""The metrics of the usual tasks, as their official scripts define them."""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating] | npt.NDArray[np.integer]
Span = tuple[int, int, str]

_ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(expected: Sequence[object], found: Sequence[object]) -> float:
    """Share of equal items; 0 for none."""
    return sum(e == f for e, f in zip(expected, found, strict=True)) / max(len(expected), 1)


def matthews(expected: Array, found: Array) -> float:
    """Matthews' correlation of class numbers, for any number of classes (CoLA); 0 where undefined."""
    classes = int(max(np.max(expected), np.max(found))) + 1
    table = np.zeros((classes, classes))
    np.add.at(table, (np.asarray(expected, dtype=np.int64), np.asarray(found, dtype=np.int64)), 1)
    total, right = table.sum(), np.trace(table)
    of_expected, of_found = table.sum(1), table.sum(0)
    spread = (total**2 - (of_expected**2).sum()) * (total**2 - (of_found**2).sum())
    if spread == 0:
        return 0.0
    return float((right * total - (of_expected * of_found).sum()) / math.sqrt(spread))


def f1(expected: Array, found: Array, positive: int = 1) -> float:
    """F1 of class ``positive`` (MRPC, QQP); 0 when nothing of it was expected and found."""
    hits = int(np.sum((expected == positive) & (found == positive)))
    wrong = int(np.sum((expected == positive) != (found == positive)))
    return 2 * hits / (2 * hits + wrong) if hits else 0.0


def macro_f1(expected: Array, found: Array) -> float:
    """Mean of the F1 of every class that is expected."""
    return float(np.mean([f1(expected, found, int(one)) for one in np.unique(expected)]))


def pearson(expected: Array, found: Array) -> float:
    """Correlation of numbers; 0 where one side does not vary."""
    x, y = (np.asarray(side, dtype=np.float64) - np.mean(side) for side in (expected, found))
    spread = math.sqrt(float((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / spread) if spread else 0.0


def spearman(expected: Array, found: Array) -> float:
    """Correlation of ranks, equal numbers sharing their mean rank."""
    return pearson(_ranks(expected), _ranks(found))


def _ranks(values: Array) -> npt.NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[group]
    return ranks


def entities(tags: Sequence[str]) -> set[Span]:
    """(first word, one past the last, type) of the entities in IOB1, IOB2 or BIOES tags.

    As conlleval: an entity ends where the type changes, at O, before B and S, and after E and S; an
    I without anything before it starts one.
    """
    found: set[Span] = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-") if tag != "O" else ("O", "", "")
        if kind and (mark in ("O", "B", "S") or name != kind):
            found.add((start, place, kind))
            kind = ""
        if mark != "O" and not kind:
            start, kind = place, name
        if mark in ("E", "S"):
            found.add((start, place + 1, kind))
            kind = ""
    return found


def entity_f1(expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    """F1 of exact entities over all sentences, as conlleval counts it."""
    hits = total = 0
    for one, other in zip(expected, found, strict=True):
        right, guessed = entities(one), entities(other)
        hits += len(right & guessed)
        total += len(right) + len(guessed)
    return 2 * hits / total if total else 0.0


def answer_words(text: str) -> list[str]:
    """Words of an answer as SQuAD's script compares them: lower case, no punctuation, no English articles.

    Punctuation of any script is left out, and Han, kana and Thai characters count one by one, as in the
    scripts for MLQA and CMRC.
    """
    text = "".join(
        character
        for character in text.lower()
        if character not in string.punctuation and not unicodedata.category(character).startswith("P")
    )
    spaced = "".join(f" {character} " if _stands_alone(character) else character for character in text)
    return _ARTICLES.sub(" ", spaced).split()


def _stands_alone(character: str) -> bool:
    code = ord(character)
    return 0x0E00 <= code < 0x0E80 or 0x3040 <= code < 0x3100 or 0x3400 <= code < 0xA000 or code >= 0x20000


def exact_answer(found: str, answers: Sequence[str]) -> float:
    """1 when ``found`` equals one of the answers; no answer is the empty text."""
    return float(any(answer_words(found) == answer_words(answer) for answer in answers or [""]))


def answer_f1(found: str, answers: Sequence[str]) -> float:
    """The best F1 of words against one of the answers."""
    return max(_words_f1(answer_words(found), answer_words(answer)) for answer in answers or [""])


def _words_f1(found: list[str], answer: list[str]) -> float:
    if not found or not answer:
        return float(found == answer)
    common = sum((Counter(found) & Counter(answer)).values())
    return 2 * common / (len(found) + len(answer))
