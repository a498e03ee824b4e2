"""Matches opening with closing tokens in one loop over the tokens of a page with one stack."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from pipeline.wikitext import markup
from pipeline.wikitext.markup import (
    BRACE_CLOSE,
    BRACKET_CLOSE,
    COMMENT_OPEN,
    HEADING,
    LINE,
    LINK_OPEN,
    PARAMETER_OPEN,
    RAW_OPEN,
    REFERENCE_OPEN,
    TABLE_CLOSE,
    TABLE_OPEN,
    TAG_CLOSE,
    TAG_NAMES,
    TEMPLATE_OPEN,
    TEXTS,
    URL_OPEN,
    VARIANT_CLOSE,
    VARIANT_OPEN,
)

_INLINE = frozenset([LINK_OPEN, URL_OPEN, VARIANT_OPEN])
_BRACES = frozenset([TEMPLATE_OPEN, PARAMETER_OPEN])
_OPENERS = frozenset([LINK_OPEN, URL_OPEN, VARIANT_OPEN, TEMPLATE_OPEN, PARAMETER_OPEN, TABLE_OPEN])
_OPAQUE = frozenset([RAW_OPEN, COMMENT_OPEN, REFERENCE_OPEN])


class ParsedText:
    """A text split into tokens, and the ends of its constructs. Rendering does not change it.

    ``parts`` alternate between texts and tokens. Rendering copies ``spare``, since it consumes it.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], is_hidden_link: Callable[[str], bool]) -> None:
        self.parts = pattern.split(text)
        self.texts = self.parts[0::2]
        self.tokens = self.parts[1::2]
        self.kinds = markup.kinds_of(self.tokens)
        self.generation = markup.generation()
        self.matches = Matches(self.tokens, self.kinds, lambda at: is_hidden_link(self.texts[at + 1]))
        self.matches.run()


class Matches:
    """Ends of the constructs of a page. Numbers identify the tokens.

    ``close[opening]`` is the closing token. One run of brackets or braces may close several constructs.
    ``spare[token]`` is how many brackets of a run close nothing.
    """

    def __init__(self, tokens: Sequence[str], kinds: list[int], spans_lines: Callable[[int], bool]) -> None:
        self.tokens = tokens
        self.kinds = kinds
        self.close: dict[int, int] = {}
        self.spare: dict[int, int] = {}
        self._spans_lines = spans_lines
        self._stack: list[int] = []
        self._braces = 0
        self._tables = 0
        self._tag_closes: dict[str, list[int]] | None = None
        self._reference_opens: list[int] = []
        self._hidden: dict[str, dict[int, int]] = {}

    def run(self) -> None:
        """Fills ``close`` and ``spare``. A ``{{{`` closed by ``}}`` becomes a ``{{``."""
        kinds, stack = self.kinds, self._stack
        resume = 0
        for at, kind in enumerate(kinds):
            if kind < LINE or at < resume:
                continue
            if kind in _OPENERS:
                stack.append(at)
                self._braces += kind in _BRACES
                self._tables += kind == TABLE_OPEN
            elif kind == BRACKET_CLOSE:
                self._close_brackets(at)
            elif kind == BRACE_CLOSE:
                self._close_braces(at, len(self.tokens[at]))
            elif kind == LINE:
                if stack and kinds[stack[-1]] in _INLINE:
                    self._end_inline(at)
            elif kind == TABLE_CLOSE:
                self._close_table(at)
            elif kind in _OPAQUE:
                end = self.end_of_opaque(at)
                if end is not None:
                    self.close[at] = end
                    resume = end + 1
            elif kind == VARIANT_CLOSE and stack and kinds[stack[-1]] == VARIANT_OPEN:
                self.close[stack.pop()] = at

    def _close_brackets(self, at: int) -> None:
        left = len(self.tokens[at])
        stack = self._stack
        while left and stack:
            kind = self.kinds[stack[-1]]
            if kind == URL_OPEN:
                left -= 1
            elif kind == LINK_OPEN and left >= 2:
                left -= 2
            else:
                break
            self.close[stack.pop()] = at
        if left:
            self.spare[at] = left

    def _close_braces(self, at: int, left: int) -> None:
        while left >= 2 and self._braces:
            top = self._pop_until(_BRACES)
            self._braces -= 1
            if self.kinds[top] == PARAMETER_OPEN and left >= 3:
                left -= 3
            else:
                self.kinds[top] = TEMPLATE_OPEN
                left -= 2
            self.close[top] = at

    def _close_table(self, at: int) -> None:
        # '|}' ends a table. '|}}' may be the last, empty argument of a template and its end.
        braces = self.tokens[at].count("}")
        while self._stack and self.kinds[self._stack[-1]] in _INLINE:
            self._stack.pop()
        in_template = bool(self._stack) and self.kinds[self._stack[-1]] in _BRACES
        if in_template and braces >= 2:
            self._close_braces(at, braces)
        elif self._tables:
            self.close[self._pop_until(frozenset([TABLE_OPEN]))] = at
            self._tables -= 1
            self._close_braces(at, braces - 1)

    def _pop_until(self, kinds: frozenset[int]) -> int:
        """Pops openings, which then stay unclosed, until one of ``kinds``."""
        while True:
            top = self._stack.pop()
            kind = self.kinds[top]
            if kind in kinds:
                return top
            self._tables -= kind == TABLE_OPEN
            self._braces -= kind in _BRACES

    def _end_inline(self, at: int) -> None:
        """Ends links at the end of their paragraph, and a file's caption at the end of its section."""
        stack = self._stack
        is_heading = HEADING in TEXTS[self.tokens[at]]
        while stack and self.kinds[stack[-1]] in _INLINE and (is_heading or not self._spans_lines(stack[-1])):
            stack.pop()

    # --- tags ---

    def _closes_of(self, name: str) -> list[int]:
        if self._tag_closes is None:
            self._tag_closes = {}
            for at, kind in enumerate(self.kinds):
                if kind == TAG_CLOSE:
                    self._tag_closes.setdefault(TAG_NAMES[self.tokens[at]], []).append(at)
                elif kind == markup.COMMENT_CLOSE:
                    self._tag_closes.setdefault("!--", []).append(at)
                elif kind == REFERENCE_OPEN:
                    self._reference_opens.append(at)
        return self._tag_closes.get(name, [])

    def end_of_opaque(self, at: int) -> int | None:
        """The token that ends the tag or comment opened at ``at``, ignoring the content, or None."""
        kind = self.kinds[at]
        name = "!--" if kind == COMMENT_OPEN else TAG_NAMES[self.tokens[at]]
        closes = self._closes_of(name)
        place = bisect_right(closes, at)
        if place == len(closes):
            return None
        end = closes[place]
        if kind == REFERENCE_OPEN:
            # References do not nest. If another one opens before this one ends, this one was left unclosed.
            place = bisect_right(self._reference_opens, at)
            if place < len(self._reference_opens) and self._reference_opens[place] < end:
                return None
        return end

    def end_of_hidden(self, at: int) -> int | None:
        """The token before which the element opened at ``at`` ends. Elements of its name may nest."""
        name = TAG_NAMES[self.tokens[at]]
        ends = self._hidden.get(name)
        if ends is None:
            ends = self._hidden[name] = self._match_elements(name)
        return ends.get(at)

    def _match_elements(self, name: str) -> dict[int, int]:
        # In HTML, a reading aid may omit its closing tags. Then the next sibling ends it.
        siblings = ("rt", "rp", "rb", "ruby") if name in ("rt", "rp", "rtc") else ()
        ends: dict[int, int] = {}
        open_elements: list[int] = []
        for at, token in enumerate(self.tokens):
            if token[0] != "<":
                continue
            found = TAG_NAMES.get(token)
            if siblings and found in siblings and open_elements:
                ends[open_elements.pop()] = at
            if found == name:
                if token[1] != "/":
                    if not token.endswith("/>"):
                        open_elements.append(at)
                elif open_elements:
                    ends[open_elements.pop()] = at
        return ends
