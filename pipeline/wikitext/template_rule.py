"""What a template rule is: from the arguments of a call to the text that a reader sees."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Arguments(Protocol):
    """The arguments of one call, each rendered to text when it is first asked for."""

    def get(self, name: str) -> str:
        """Text of the argument ``name`` (a number for positional ones), stripped; '' if missing."""

    def positional(self) -> list[str]:
        """Texts of the positional arguments."""

    def pairs(self) -> list[tuple[str | None, str]]:
        """All arguments in order, as (name or None, text)."""


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
