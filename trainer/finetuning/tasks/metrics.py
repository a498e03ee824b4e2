"""The metrics of common tasks, as their official scripts define them."""

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


def accuracy(expected: Sequence[object], predicted: Sequence[object]) -> float:
    """Share of equal items, or 0 for none."""
    return sum(e == f for e, f in zip(expected, predicted, strict=True)) / max(len(expected), 1)


def matthews(expected: Array, predicted: Array) -> float:
    """Matthews' correlation of class numbers, for any number of classes (CoLA). 0 where undefined."""
    classes = int(max(np.max(expected), np.max(predicted))) + 1
    table = np.zeros((classes, classes))
    np.add.at(table, (np.asarray(expected, dtype=np.int64), np.asarray(predicted, dtype=np.int64)), 1)
    total, right = table.sum(), np.trace(table)
    of_expected, of_predicted = table.sum(1), table.sum(0)
    spread = (total**2 - (of_expected**2).sum()) * (total**2 - (of_predicted**2).sum())
    if spread == 0:
        return 0.0
    return float((right * total - (of_expected * of_predicted).sum()) / math.sqrt(spread))


def f1(expected: Array, predicted: Array, positive: int = 1) -> float:
    """F1 of class ``positive`` (MRPC, QQP), or 0 without a true positive."""
    hits = int(np.sum((expected == positive) & (predicted == positive)))
    wrong = int(np.sum((expected == positive) != (predicted == positive)))
    return 2 * hits / (2 * hits + wrong) if hits else 0.0


def macro_f1(expected: Array, predicted: Array) -> float:
    """Mean F1 of the classes that occur in ``expected`` or ``predicted``, as scikit-learn has it."""
    classes = np.union1d(expected, predicted)
    return float(np.mean([f1(expected, predicted, int(label)) for label in classes]))


def pearson(expected: Array, predicted: Array) -> float:
    """Pearson's correlation, or 0 if one side is constant."""
    x, y = (np.asarray(side, dtype=np.float64) - np.mean(side) for side in (expected, predicted))
    spread = math.sqrt(float((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / spread) if spread else 0.0


def spearman(expected: Array, predicted: Array) -> float:
    """Spearman's rank correlation. Equal numbers share their mean rank."""
    return pearson(_ranks(expected), _ranks(predicted))


def _ranks(values: Array) -> npt.NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[group]
    return ranks


def entities(tags: Sequence[str]) -> set[Span]:
    """(first word, one past the last, type) of the entities in IOB1, IOB2 or BIOES tags.

    As in conlleval, an entity ends where the type changes, at O, before B and S, and after E and S. An I
    without an entity before it starts one. A bare B or I is of the type "".
    """
    spans: set[Span] = set()
    start = 0
    kind: str | None = None
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-") if tag != "O" else ("O", "", "")
        if kind is not None and (mark in ("O", "B", "S") or name != kind):
            spans.add((start, place, kind))
            kind = None
        if mark != "O" and kind is None:
            start, kind = place, name
        if mark in ("E", "S") and kind is not None:
            spans.add((start, place + 1, kind))
            kind = None
    return spans


def has_entities(tags: Sequence[str]) -> bool:
    """Whether all ``tags`` are O or mark places in entities (B, I, E, S), unlike those of parts of speech."""
    return all(tag == "O" or tag.partition("-")[0] in ("B", "I", "E", "S") for tag in tags)


def entity_f1(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """F1 of exact entities over all sentences, as conlleval counts it."""
    hits = total = 0
    for expected_tags, predicted_tags in zip(expected, predicted, strict=True):
        right, guessed = entities(expected_tags), entities(predicted_tags)
        hits += len(right & guessed)
        total += len(right) + len(guessed)
    return 2 * hits / total if total else 0.0


def answer_words(text: str) -> list[str]:
    """Words of an answer as SQuAD's script compares them: lower case, no punctuation, no English articles.

    As in the scripts for MLQA and CMRC, punctuation of every script is removed, and each Han, kana and Thai
    character is a word.
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


def exact_answer(predicted: str, answers: Sequence[str]) -> float:
    """1 if ``predicted`` equals one of the answers. The empty text means no answer."""
    return float(any(answer_words(predicted) == answer_words(answer) for answer in answers or [""]))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """The best word F1 against any of the answers."""
    return max(_words_f1(answer_words(predicted), answer_words(answer)) for answer in answers or [""])


def _words_f1(predicted: list[str], answer: list[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    common = sum((Counter(predicted) & Counter(answer)).values())
    return 2 * common / (len(predicted) + len(answer))
