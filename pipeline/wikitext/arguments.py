"""The arguments of a template call: their tokens, and their text on demand."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.wikitext.markup import ASIDE, BLANKS, CELL, LINE_MARKS, TABLE_CLOSE


class Argument(NamedTuple):
    """``text``, then tokens ``start`` to ``stop`` - 1 with the text after each. ``tail`` follows the last."""

    text: str
    start: int
    stop: int
    tail: str | None


def split_arguments(
    texts: Sequence[str], kinds: Sequence[int], close: Mapping[int, int], opening: int, end: int
) -> list[Argument]:
    """The parts between the bars of the call from token ``opening`` to ``end``. The first is its name.

    ``texts[i + 1]`` follows token ``i``. ``kinds`` are the tokens' kinds. ``close`` maps an opening token to
    its closing token.
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
            # The run of braces that ends this call also ends a call inside it, with no text between.
            arguments.append(Argument(first, start, end, None))
            return arguments
        at = inner_end + 1
    arguments.append(Argument(first, start, end, piece))
    if end < len(kinds) and kinds[end] == TABLE_CLOSE:
        # After a line feed, "|}}" ends the call with an empty last argument.
        arguments.append(Argument("", end, end, None))
    return arguments


class CallArguments:
    """Names and numbers of the arguments of one call. Texts are rendered once, on first access.

    ``unnamed`` is how many arguments have only numbers, even if they contain ``=``. For most parser functions
    this is all of them.
    """

    def __init__(
        self, render: Callable[[Argument], str], own_name: str, arguments: list[Argument], unnamed: int = 0
    ) -> None:
        self._render = render
        self._own_name = own_name
        self._order: list[tuple[str | None, Argument]] = []
        self._by_name: dict[str, Argument] = {}
        self._numbered: set[str] = set()
        self._folded: dict[str, Argument] | None = None
        self._texts: dict[Argument, str] = {}
        count = 0
        for place, argument in enumerate(arguments):
            name, equals, value = argument.text.partition("=") if place >= unnamed else ("", "", "")
            if equals:
                name = " ".join(name.split())
                self._by_name[name] = argument._replace(text=value)
                self._order.append((name, self._by_name[name]))
                self._numbered.discard(name)
            else:
                count += 1
                self._by_name[str(count)] = argument
                self._order.append((None, argument))
                self._numbered.add(str(count))

    def _text(self, argument: Argument) -> str:
        text = self._texts.get(argument)
        if text is None:
            text = self._texts[argument] = self._render(argument)
        return text

    def _stripped(self, argument: Argument) -> str:
        text = self._text(argument).strip(BLANKS)
        if text == ASIDE:
            # A rule has nothing to show.
            return ""
        # Stripping has removed the line feed that made it a list.
        return "\n" + text if text[:1] in LINE_MARKS else text

    def get(self, name: str) -> str:
        """Stripped text of the argument ``name`` in any case, or ''. ``@`` is the name of the template."""
        argument = self._by_name.get(name)
        if argument is None:
            if name == "@":
                return self._own_name
            if self._folded is None:
                self._folded = {key.casefold(): value for key, value in self._by_name.items()}
            argument = self._folded.get(name.casefold())
        return "" if argument is None else self._stripped(argument)

    def given(self, name: str) -> str | None:
        """Text of the argument ``name``, or None. As in MediaWiki, only a named argument is stripped."""
        argument = self._by_name.get(name)
        if argument is None:
            return None
        return self._text(argument) if name in self._numbered else self._stripped(argument)

    def positional(self) -> list[str]:
        """Texts of the positional arguments, which have no name or a number."""
        texts = []
        number = 1
        while (argument := self._by_name.get(str(number))) is not None:
            texts.append(self._stripped(argument))
            number += 1
        return texts

    def names(self) -> list[str | None]:
        """The names of all arguments in order. None for an argument without a name."""
        return [name for name, _ in self._order]

    def at(self, place: int) -> str:
        """Text of the argument at index ``place`` in this order."""
        return self._stripped(self._order[place][1])
