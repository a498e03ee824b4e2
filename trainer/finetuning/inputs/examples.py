"""What labeled examples are, and which columns of a table hold them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# A number from 0, a name in the header line, or a list of alternative names.
Column = int | str | list[str]


@dataclass(frozen=True)
class TextExample:
    """A sentence or a pair with a label. For regression, the label is a number as text."""

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
    """A question about a context. ``answers`` are texts, none if the context has no answer."""

    key: str
    question: str
    context: str
    answers: tuple[str, ...]
    start: int
    """Start of the first answer in the context, in characters, or -1 without an answer."""
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
