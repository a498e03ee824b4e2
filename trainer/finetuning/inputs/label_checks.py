"""Refuses labels that a training would accept silently and learn nothing from."""

import math
from collections.abc import Iterable, Sequence

from schemas.errors import InputError
from trainer.finetuning.inputs.examples import QuestionExample, TaggedExample, TextExample

_WORD_HEADERS = {"word", "words", "token", "tokens", "form"}
_TAG_HEADERS = {"tag", "tags", "label", "labels", "ner", "ner_tags", "pos", "pos_tags", "upos"}
_HEADER_HINT = "is the line a header? Give the columns by name, or remove the line"


def check_number(value: float, row: TextExample) -> float:
    """``value``. Raises InputError for a label that is not finite."""
    if not math.isfinite(value):
        raise InputError(f"{row.origin}: label {row.label!r} is not a finite number")
    return value


def number_of(row: TextExample) -> float:
    """The label as a finite number. Raises InputError that names file and row."""
    try:
        value = float(row.label)
    except ValueError as error:
        hint = f"; {_HEADER_HINT}" if is_first_row(row.origin) else ""
        raise InputError(f"{row.origin}: label {row.label!r} is not a number{hint}") from error
    return check_number(value, row)


def is_first_row(origin: str) -> bool:
    """Whether an example comes from the first row of its file.

    >>> is_first_row("a.tsv:1"), is_first_row("a.tsv:11")
    (True, False)
    """
    return origin.rpartition(":")[2].removeprefix(" row ").strip() == "1"


def check_classes(rows: Sequence[TextExample], least: int) -> list[str]:
    """The classes of the training rows, sorted.

    Raises InputError that names file and row for a class with fewer than ``least`` examples, which is
    most often a misspelling or a header that was read as data, for a label like NaN, and for a single class.
    """
    of_class: dict[str, list[TextExample]] = {}
    for row in rows:
        of_class.setdefault(row.label, []).append(row)
    for label, examples in sorted(of_class.items()):
        if label.lower() in ("nan", "inf", "-inf", "+inf"):
            raise InputError(f"{examples[0].origin}: label {label!r} is not a class")
        if len(of_class) > 1 and least > 1 and all(is_first_row(row.origin) for row in examples):
            raise InputError(
                f"{examples[0].origin}: only the first line has the label {label!r}; {_HEADER_HINT}"
            )
        if len(examples) < least:
            count = "one example" if len(examples) == 1 else f"{len(examples)} examples"
            raise InputError(
                f"{examples[0].origin}: label {label!r} has {count} in the training files, fewer than"
                f" min_class_examples ({least}); correct the label, or lower min_class_examples"
            )
    if len(of_class) == 1:
        raise InputError(
            f"{rows[0].origin}: all examples have the label {rows[0].label!r}; a classifier needs two or more"
        )
    return sorted(of_class)


def check_tags(sentences: Iterable[TaggedExample]) -> None:
    """Raises InputError that names file and line for an empty tag, and for a header that was read as data."""
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            if not tag.strip():
                raise InputError(f"{sentence.origin}: word {place + 1} of the sentence has no tag")
        word, tag = sentence.words[0].lower(), sentence.tags[0].lower()
        if is_first_row(sentence.origin) and word in _WORD_HEADERS and tag in _TAG_HEADERS:
            raise InputError(f"{sentence.origin}: {word!r} has the tag {tag!r}; remove the header line")


def check_answers(questions: Sequence[QuestionExample], files: Sequence[str]) -> None:
    """Raises InputError if no question has an answer, as in published test sets: all metrics would be wrong.

    SQuAD 2.0, in which some questions have none, passes.
    """
    if not any(question.answers for question in questions):
        raise InputError(
            f"{files[0]}: no question has an answer, so nothing can be measured; bertmill predict answers"
            " such questions"
        )
