"""Labeled examples from files: tables of sentences and pairs, CoNLL columns, SQuAD JSON."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import InputError
from schemas.json_text import parse_json
from trainer.finetuning.tables import check_width, is_structured, open_table
from trainer.finetuning.text_files import plain_suffix, read_text

# A number from 0, a name in the header line, or a list of alternative names.
Column = int | str | list[str]


@dataclass(frozen=True)
class TextExample:
    """A sentence or a pair with a label; for regression, the label is a number as text."""

    text: str
    pair: str | None
    label: str
    origin: str
    """File and line."""
    group: str = ""
    """The value of the column that groups the examples, for example the language in XNLI."""


@dataclass(frozen=True)
class TaggedExample:
    """Words, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context. ``answers`` are texts; empty if the context has no answer."""

    key: str
    question: str
    context: str
    answers: tuple[str, ...]
    start: int
    """Start of the first answer in the context, in characters; -1 without an answer."""
    origin: str


@dataclass(frozen=True)
class Columns:
    """What the columns of tables mean."""

    text: Column
    pair: Column | None = None
    label: Column | None = 1
    """None for a set without labels."""
    group: str | None = None
    """Column that groups the examples."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Column -> the value that a row must have in it, in files with that column."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Other spelling of a label -> the label."""
    skip_bad_lines: bool = False
    """Skip rows with too few fields."""


def read_table(uris: Sequence[str], columns: Columns) -> Iterator[TextExample]:
    """Rows of tables (see trainer/finetuning/tables.py), with a header when a column is given by name.

    Raises InputError that names file and row for a column that is missing or there twice, a value that is
    missing, and, unless ``columns`` skips them, a row with too few fields or with more than the header.
    """
    fields_used = (columns.text, columns.pair, columns.label)
    named = columns.group is not None or any(isinstance(column, str | list) for column in fields_used)
    for uri in uris:
        table = open_table(uri, header=named)
        names = table.names
        text, pair, label = (_place(uri, names, column) for column in fields_used)
        group = names.index(columns.group) if columns.group in names else None
        only = [(names.index(name), value) for name, value in columns.only.items() if name in names]
        last = max(place for place in (text, pair, label, group, *(p for p, _ in only)) if place is not None)
        width = len(names)
        for origin, fields in table.rows:
            width = width or len(fields)
            if not columns.skip_bad_lines:
                check_width(origin, fields, width, header=bool(names))
            elif names and len(fields) > width:
                continue
            if last >= len(fields):
                if columns.skip_bad_lines:
                    continue
                raise InputError(f"{origin}: {len(fields)} fields are too few for the columns in the config")
            if any(_spelling(fields[place]) != value for place, value in only):
                continue
            spelling = "" if label is None else _spelling(fields[label])
            if not spelling and label is not None:
                raise InputError(f"{origin}: has no label")
            yield TextExample(
                text=_text(fields[text or 0], origin, columns.text),
                pair=None if pair is None else _text(fields[pair], origin, columns.pair),
                label=columns.same.get(spelling, spelling),
                origin=origin,
                group="" if group is None else _spelling(fields[group]),
            )


def _text(value: object, origin: str, column: Column | None) -> str:
    if value is None or isinstance(value, list | dict):
        raise InputError(f"{origin}: column {column!r} must be a text, got {value!r:.60}")
    return value if isinstance(value, str) else _spelling(value)


def _spelling(value: object) -> str:
    """A label as text: 1, 1.0 and "1" are one label, true and "true" another; "" for a missing one."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _place(uri: str, names: list[str], column: Column | None) -> int | None:
    if column is None or isinstance(column, int):
        return column
    candidates = [column] if isinstance(column, str) else column
    found = [name for name in candidates if name in names]
    if not found:
        listed = " or ".join(candidates)
        raise InputError(f"{uri}:1: no column {listed!r}; the columns are {', '.join(names)}")
    if names.count(found[0]) > 1:
        raise InputError(f"{uri}:1: column {found[0]!r} is there {names.count(found[0])} times")
    return names.index(found[0])


def read_tagged(uris: Sequence[str], word: Column, tag: Column | None) -> Iterator[TaggedExample]:
    """Sentences of column files (see `read_conll`) and of tables with a list of words and one of tags.

    CSV, JSON, JSON Lines, Parquet and datasets are tables. A list in CSV is JSON, a list of Python, or its
    parts with spaces between them. All tags are O if ``tag`` is None. Raises InputError that names file and
    row.
    """
    for uri in uris:
        if is_structured(uri):
            yield from _tagged_rows(uri, word, tag)
        elif isinstance(word, int) and (tag is None or isinstance(tag, int)):
            yield from read_conll([uri], word, tag)
        else:
            raise InputError(f"{uri}: its columns have no names; give files.word and files.tag as numbers")


def _tagged_rows(uri: str, word: Column, tag: Column | None) -> Iterator[TaggedExample]:
    table = open_table(uri, header=True)
    word_place = _place(uri, table.names, word)
    tag_place = _place(uri, table.names, tag)
    for origin, fields in table.rows:
        if max(word_place or 0, tag_place or 0) >= len(fields):
            raise InputError(f"{origin}: {len(fields)} fields are too few for the columns in the config")
        words = [_text(value, origin, word) for value in _list(fields[word_place or 0], origin, word)]
        tags = ["O"] * len(words)
        if tag_place is not None:
            tags = [_spelling(value) for value in _list(fields[tag_place], origin, tag)]
        if len(words) != len(tags):
            raise InputError(f"{origin}: {len(words)} words, but {len(tags)} tags")
        if "" in tags:
            raise InputError(f"{origin}: word {tags.index('') + 1} has no tag")
        if words:
            yield TaggedExample(tuple(words), tuple(tags), origin)


def _structure(text: str) -> Any:
    """A list or mapping in JSON, or as Python (and pandas) writes it; the text itself if it is neither."""
    for parse in (parse_json, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return parse(text)
    return text


def _list(value: Any, origin: str, column: Column | None) -> list[Any]:
    """A list in a cell; in text it is JSON, a list of Python (as pandas writes it), or split at spaces."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _structure(value)
        if isinstance(value, str):
            raise InputError(f"{origin}: column {column!r} is not a list: {value!r:.60}")
    if isinstance(value, str):
        return value.split(" ")
    if not isinstance(value, list):
        raise InputError(f"{origin}: column {column!r} must be a list, got {value!r:.60}")
    return value


def read_conll(uris: Sequence[str], word: int, tag: int | None) -> Iterator[TaggedExample]:
    """Sentences of column files (CoNLL, IOB2, CoNLL-U): one word per line, a blank line after a sentence.

    All tags are O if ``tag`` is None.

    Columns are separated by tabs, or by spaces in a line without tabs; other white space is part of a word.
    Comments, and the ranges and empty nodes of CoNLL-U (ids like 3-4, 5.1), are skipped. A line that starts
    with # and has the columns of a word is one. Raises InputError that names file and line.
    """
    for uri in uris:
        words: list[str] = []
        tags: list[str] = []
        first = 1
        last = word if tag is None else max(word, tag)
        width = last + 1
        for number, ended in enumerate([*read_text(uri).split("\n"), ""], start=1):
            line = ended.rstrip("\r")
            if not line.strip(" \t"):
                if words:
                    yield TaggedExample(tuple(words), tuple(tags), f"{uri}:{first}")
                words, tags = [], []
                first = number + 1
                continue
            fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
            hash_word = word == 0 and len(fields) == width
            if line.startswith("-DOCSTART-") or _is_range(fields, word):
                continue
            if line.startswith(("# ", "#\t")) and not hash_word:
                continue
            if last >= len(fields):
                read = f"column {word}" if tag is None else f"columns {word} and {tag}"
                raise InputError(f"{uri}:{number}: {len(fields)} columns, but the config reads {read}")
            width = len(fields)
            words.append(fields[word])
            tags.append("O" if tag is None else fields[tag])


def _is_range(fields: list[str], word: int) -> bool:
    return word > 0 and any(mark in fields[0] for mark in "-.") and fields[0].strip("0123456789-.") == ""


def read_squad(uris: Sequence[str], *, labeled: bool = True) -> Iterator[QuestionExample]:
    """Questions of SQuAD 1.1 and 2.0 files, and of tables with SQuAD's columns.

    A table has the columns question, context and (if ``labeled``) answers, and may have id. Raises
    InputError that names file and place.
    """
    for uri in uris:
        squad = None
        if plain_suffix(uri) == ".json" or not is_structured(uri):
            with suppress(ValueError):
                squad = parse_json(read_text(uri))
        if is_structured(uri) and not _is_squad(squad):
            yield from _question_rows(uri, labeled=labeled)
            continue
        try:
            if squad is None:
                squad = parse_json(read_text(uri))
            articles = squad["data"]
            for a, article in enumerate(articles):
                for p, paragraph in enumerate(article["paragraphs"]):
                    for question in paragraph["qas"]:
                        origin = f"{uri}: data.{a}.paragraphs.{p}: {question.get('id')}"
                        yield _question(question, paragraph["context"], origin)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{uri}: not in the format of SQuAD: {error!r}") from error


def _is_squad(content: object) -> bool:
    """Whether a JSON file has SQuAD's nested form. Files without a "data" are tables, or nothing."""
    articles = content.get("data") if isinstance(content, dict) else None
    return isinstance(articles, list) and any(isinstance(a, dict) and "paragraphs" in a for a in articles)


def _question_rows(uri: str, *, labeled: bool) -> Iterator[QuestionExample]:
    table = open_table(uri, header=True)
    names = ("question", "context", "answers") if labeled else ("question", "context")
    places = [_place(uri, table.names, name) or 0 for name in names]
    key = table.names.index("id") if "id" in table.names else None
    for number, (origin, fields) in enumerate(table.rows):
        if max(places) >= len(fields):
            raise InputError(f"{origin}: {len(fields)} fields are too few for SQuAD's columns")
        question, context = (
            _text(fields[place], origin, name) for place, name in zip(places[:2], names, strict=False)
        )
        row = {
            "id": str(number) if key is None else fields[key],
            "question": question,
            "answers": _answers(fields[places[2]], origin) if labeled else [],
        }
        yield _question(row, context, origin)


def _answers(value: Any, origin: str) -> list[dict[str, Any]]:
    """Answers as SQuAD's list, from that list, a mapping of lists (datasets), texts, or one text.

    In text, a list or a mapping is JSON or Python's form of it.
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        value = _structure(value)
    if value is None or value == "":
        return []
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts, starts = value["text"], value.get("answer_start") or [None] * len(value["text"])
        if len(texts) != len(starts):
            raise InputError(f"{origin}: {len(texts)} answers, but {len(starts)} places of answers")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    answers: list[dict[str, Any]] = [
        {"text": each} if isinstance(each, str) else each
        for each in (value if isinstance(value, list) else [value])
    ]
    for answer in answers:
        if not isinstance(answer, dict) or not isinstance(answer.get("text"), str) or not answer["text"]:
            raise InputError(f"{origin}: answers must have texts, got {answer!r:.60}")
        if not isinstance(answer.get("answer_start"), int):
            answer["answer_start"] = -1  # its text is searched for
    return answers


def _question(question: dict[str, object], context: str, origin: str) -> QuestionExample:
    answers = question.get("answers") or []
    if not isinstance(answers, list):
        raise InputError(f"{origin}: answers is not a list")
    texts = tuple(str(answer["text"]) for answer in answers)
    start = int(answers[0]["answer_start"]) if texts else -1
    if texts and (start < 0 or context[start : start + len(texts[0])] != texts[0]):
        # Some files count in a context with other white space, so search for the answer's text.
        place = context.find(texts[0])
        if place < 0:
            raise InputError(f"{origin}: the answer {texts[0]!r} is not in the context")
        start = place
    return QuestionExample(str(question["id"]), str(question["question"]), context, texts, start, origin)
