"""Labelled examples from local files: tab-separated (GLUE, XNLI), CoNLL columns, SQuAD JSON."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster import storage
from schemas.errors import InputError
from schemas.json_text import parse_json

# A number from 0, a name in the header line, or several names of which a file has one.
Column = int | str | list[str]

_OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}


@dataclass(frozen=True)
class TextExample:
    """A sentence or a pair with a label, which is a number's text for regression."""

    text: str
    pair: str | None
    label: str
    origin: str
    """File and line."""
    group: str = ""
    """The value of the column that divides the examples, the language in XNLI."""


@dataclass(frozen=True)
class TaggedExample:
    """Words, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context. ``answers`` are texts; empty when the question has none in it."""

    key: str
    question: str
    context: str
    answers: tuple[str, ...]
    start: int
    """Where the first answer begins in the context, in characters; -1 without an answer."""
    origin: str


def read_text(uri: str) -> str:
    """The text of a file, decompressed by its name's ending. Raises InputError."""
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    ending = next((name for name in _OPENERS if uri.endswith(name)), None)
    try:
        text = (_OPENERS[ending](raw) if ending else raw).decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{uri}: cannot be read as {ending or 'text'}: {error}") from error
    return text


@dataclass(frozen=True)
class Columns:
    """What the columns of tab-separated files mean."""

    text: Column
    pair: Column | None = None
    label: Column = 1
    group: str | None = None
    """Column that divides the examples into groups."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Column -> the value that a row must have there; for the files that have such a column."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Label -> the label it is another spelling of."""
    skip_bad_lines: bool = False
    """Pass over rows with too few fields."""


def read_table(uris: Sequence[str], columns: Columns) -> Iterator[TextExample]:
    """Rows of tab-separated files, with a header line when a column is given by name.

    Fields are not quoted, as in GLUE. Raises InputError that names file and line for a row with too few
    fields, unless they are to be skipped, and for a column that is not there.
    """
    wanted = (columns.text, columns.pair, columns.label)
    named = columns.group is not None or any(isinstance(column, str | list) for column in wanted)
    for uri in uris:
        lines = io.StringIO(read_text(uri), newline="\n")
        names = lines.readline().rstrip("\r\n").split("\t") if named else []
        text, pair, label = (_place(uri, names, column) for column in wanted)
        group = names.index(columns.group) if columns.group in names else None
        only = [(names.index(name), value) for name, value in columns.only.items() if name in names]
        last = max(place for place in (text, pair, label, group, *(p for p, _ in only)) if place is not None)
        for number, line in enumerate(lines, start=2 if named else 1):
            fields = line.rstrip("\r\n").split("\t")
            if fields == [""]:
                continue
            if last >= len(fields):
                if columns.skip_bad_lines:
                    continue
                raise InputError(f"{uri}:{number}: {len(fields)} fields; too few for the columns named")
            if any(fields[place] != value for place, value in only):
                continue
            mark = fields[label or 0].strip()
            yield TextExample(
                text=fields[text or 0],
                pair=None if pair is None else fields[pair],
                label=columns.same.get(mark, mark),
                origin=f"{uri}:{number}",
                group="" if group is None else fields[group],
            )


def _place(uri: str, names: list[str], column: Column | None) -> int | None:
    if column is None or isinstance(column, int):
        return column
    found = [names.index(name) for name in ([column] if isinstance(column, str) else column) if name in names]
    if not found:
        wanted = column if isinstance(column, str) else " or ".join(column)
        raise InputError(f"{uri}:1: no column {wanted!r}; there are {', '.join(names)}")
    return found[0]


def read_conll(uris: Sequence[str], word: int, tag: int) -> Iterator[TaggedExample]:
    """Sentences of column files (CoNLL, IOB2, CoNLL-U): a word a line, a blank line after a sentence.

    Columns are separated by tabs, or by spaces where a line has no tab. Lines with # and the ranges and
    empty nodes of CoNLL-U (ids like 3-4, 5.1) are passed over. Raises InputError: file and line.
    """
    for uri in uris:
        words: list[str] = []
        tags: list[str] = []
        first = 1
        for number, line in enumerate([*read_text(uri).splitlines(), ""], start=1):
            if not line.strip():
                if words:
                    yield TaggedExample(tuple(words), tuple(tags), f"{uri}:{first}")
                words, tags = [], []
                first = number + 1
                continue
            fields = line.split("\t") if "\t" in line else line.split()
            if line.startswith(("# ", "#\t", "-DOCSTART-")) or _is_range(fields, word):
                continue
            if max(word, tag) >= len(fields):
                raise InputError(f"{uri}:{number}: {len(fields)} columns, columns {word} and {tag} are read")
            words.append(fields[word])
            tags.append(fields[tag])


def _is_range(fields: list[str], word: int) -> bool:
    return word > 0 and any(mark in fields[0] for mark in "-.") and fields[0].strip("0123456789-.") == ""


def read_squad(uris: Sequence[str]) -> Iterator[QuestionExample]:
    """Questions of SQuAD 1.1 and 2.0 files. Raises InputError that names file and place."""
    for uri in uris:
        try:
            articles = parse_json(read_text(uri))["data"]
            for a, article in enumerate(articles):
                for p, paragraph in enumerate(article["paragraphs"]):
                    for question in paragraph["qas"]:
                        origin = f"{uri}: data.{a}.paragraphs.{p}: {question.get('id')}"
                        yield _question(question, paragraph["context"], origin)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{uri}: not in SQuAD's layout: {error!r}") from error


def _question(question: dict[str, object], context: str, origin: str) -> QuestionExample:
    answers = question.get("answers") or []
    if not isinstance(answers, list):
        raise InputError(f"{origin}: answers is not a list")
    texts = tuple(str(answer["text"]) for answer in answers)
    start = int(answers[0]["answer_start"]) if texts else -1
    if texts and context[start : start + len(texts[0])] != texts[0]:
        # Some files count from a context with other white space; the text itself decides.
        found = context.find(texts[0])
        if found < 0:
            raise InputError(f"{origin}: the answer {texts[0]!r} is not in the context")
        start = found
    return QuestionExample(str(question["id"]), str(question["question"]), context, texts, start, origin)
