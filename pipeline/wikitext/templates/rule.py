"""What a template rule is: from the arguments of a call to the text that a reader sees."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Arguments(Protocol):
    """The arguments of one call, each rendered to text when it is first asked for."""

    def get(self, name: str) -> str:
        """Text of the argument ``name`` (a number for positional ones), stripped; '' if missing."""

    def given(self, name: str) -> str | None:
        """The same, None if missing; only one that is given by name is stripped."""

    def positional(self) -> list[str]:
        """Texts of the positional arguments."""

    def names(self) -> list[str | None]:
        """The names of all arguments in order; None for one without."""

    def at(self, place: int) -> str:
        """Text of the argument at ``place`` in this order."""


Rule = Callable[[Arguments], str | None]
"""Gives the text of a call; '' shows nothing; None is a hole: text that we do not know. A rule with an
attribute ``fixed`` looks at no argument."""


@dataclass(frozen=True)
class Fixed:
    """A rule that looks at no argument."""

    fixed: str | None

    def __call__(self, _: Arguments) -> str | None:
        """The fixed text."""
        return self.fixed


SILENT, HOLE = Fixed(""), Fixed(None)


@dataclass(frozen=True)
class TemplateBody:
    """A template's own wikitext, which the page expands with the arguments of the call."""

    name: str
    wikitext: str


@dataclass(frozen=True)
class PageName:
    """``{{PAGENAME}}`` and its family; ``word`` is the English magic word."""

    word: str


@dataclass(frozen=True)
class ModuleCall:
    """``{{#invoke:Module|function|...}}`` of a module that has a rule."""

    rule: Rule


Shown = Rule | TemplateBody | PageName | ModuleCall | str | None
"""How a call is shown: by a rule, a body, the page's title, a fixed text, or None for a hole."""
