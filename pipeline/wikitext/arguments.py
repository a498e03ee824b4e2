"""The arguments of a template call: where they stand among the tokens, and their text when asked for."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.wikitext.markup import ASIDE, CELL, LINE_MARKS


class Argument(NamedTuple):
    """``text``, then tokens ``start`` to ``stop`` - 1 and what follows each; ``tail`` follows the last."""

    text: str
    start: int
    stop: int
    tail: str | None


def split_arguments(
    texts: Sequence[str], kinds: Sequence[int], close: Mapping[int, int], opening: int, end: int
) -> list[Argument]:
    """The parts between the bars of the call from token ``opening`` to ``end``; the first is its name.

    ``texts[i + 1]`` follows token ``i``, ``kinds`` are the tokens' kinds, ``close`` maps an opening token to
    the one that ends it.
    """
    arguments: list[Argument] = []
    first: str | None = None
    start = at = opening + 1
    while True:
        piece = texts[at]
        if "|" in piece:
            head, *middle, last = piece.split("|")
            arguments.append(
                Argument(head, at, at, None) if first is None else Argument(first, start, at, head)
            )
            arguments += [Argument(text, at, at, None) for text in middle]
            first, start, piece = last, at, last
        elif first is None:
            first, start = piece, at
        if at >= end:
            break
        if kinds[at] == CELL:
            arguments.append(Argument(first, start, at, piece))
            first = None
            at += 1
            continue
        inner_end = close.get(at, at)
        if inner_end >= end:
            # The run of braces that ends this call ends one inside it too: no text is between.
            arguments.append(Argument(first, start, end, None))
            return arguments
        at = inner_end + 1
    arguments.append(Argument(first, start, end, piece))
    return arguments


class CallArguments:
    """Names and numbers of the arguments of one call; texts are rendered once, when first asked for."""

    def __init__(
        self, render: Callable[[Argument], str], name: str, arguments: list[Argument], is_function: bool
    ) -> None:
        self._render = render
        self._own_name = name
        self._order: list[tuple[str | None, Argument]] = []
        self._by_name: dict[str, Argument] = {}
        self._texts: dict[Argument, str] = {}
        self._count = 0
        for number, argument in enumerate(arguments):
            name, equals, value = argument.text.partition("=")
            if equals and not (is_function and number == 0):
                self._add(" ".join(name.split()), argument._replace(text=value))
            else:
                self._add(None, argument)

    def _add(self, name: str | None, argument: Argument) -> None:
        if name is None:
            self._count += 1
        self._by_name[name or str(self._count)] = argument
        self._order.append((name, argument))

    def _text(self, argument: Argument) -> str:
        text = self._texts.get(argument)
        if text is None:
            text = self._render(argument).strip()
            if text == ASIDE:
                # Nothing that a rule could show.
                text = ""
            if text[:1] in LINE_MARKS:
                # Stripping took the line feed that made it a list.
                text = "\n" + text
            self._texts[argument] = text
        return text

    def get(self, name: str) -> str:
        """Text of the argument ``name`` (a number for positional ones), stripped; '' if missing."""
        argument = self._by_name.get(name)
        if argument is None:
            return self._own_name if name == "@" else ""
        return self._text(argument)

    def positional(self) -> list[str]:
        """Texts of the positional arguments, given without a name or by number."""
        texts = []
        number = 1
        while (argument := self._by_name.get(str(number))) is not None:
            texts.append(self._text(argument))
            number += 1
        return texts

    def pairs(self) -> list[tuple[str | None, str]]:
        """All arguments in order, as (name or None, text)."""
        return [(name, self._text(argument)) for name, argument in self._order]
