"""Defines template rules, which turn the arguments of a call into the text that a reader sees."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Arguments(Protocol):
    """The arguments of one call. Each is rendered to text on first access."""

    def get(self, name: str) -> str:
        """Stripped text of the argument ``name`` (a number for positional ones), or ''."""

    def given(self, name: str) -> str | None:
        """As `get`, but None if missing. Strips only named arguments."""

    def positional(self) -> list[str]:
        """Texts of the positional arguments."""

    def names(self) -> list[str | None]:
        """The names of all arguments in order. None for an argument without a name."""

    def at(self, place: int) -> str:
        """Text of the argument at index ``place`` in this order."""


Rule = Callable[[Arguments], str | None]
"""Returns the text of a call. '' shows nothing. None is a hole, which means unknown text. A rule with the
attribute ``fixed`` ignores the arguments."""


@dataclass(frozen=True)
class Fixed:
    """A rule that ignores the arguments."""

    fixed: str | None

    def __call__(self, _: Arguments) -> str | None:
        """The fixed text."""
        return self.fixed


SILENT, HOLE = Fixed(""), Fixed(None)


@dataclass(frozen=True)
class TemplateBody:
    """A template's wikitext, which the page expands with the arguments of the call."""

    name: str
    wikitext: str


@dataclass(frozen=True)
class PageName:
    """``{{PAGENAME}}`` and related magic words. ``word`` is the English magic word."""

    word: str


@dataclass(frozen=True)
class ModuleCall:
    """``{{#invoke:Module|function|...}}`` of a module that has a rule."""

    rule: Rule


Shown = Rule | TemplateBody | PageName | ModuleCall | str | None
"""How to show a call: by a rule, a body, the page's title, a fixed text, or None for a hole."""
