"""The rendering loop: tokens of a page to text with marks (`pipeline.markup`)."""

import re

from pipeline import markup
from pipeline.arguments import Argument, CallArguments, split_arguments
from pipeline.markup import (
    BARE_URL,
    BRACKET_CLOSE,
    CELL,
    COMMENT_CLOSE,
    COMMENT_OPEN,
    GAP,
    HEADER_CELL,
    HIDDEN_OPEN,
    HOLE,
    LINE,
    LINK_OPEN,
    PARAMETER_OPEN,
    POEM_OPEN,
    RAW_OPEN,
    REFERENCE_OPEN,
    SILENT,
    SOFT,
    TABLE_OPEN,
    TAG_CLOSE,
    TAG_NAMES,
    TEMPLATE_OPEN,
    TEXTS,
    URL_OPEN,
    VARIANT_OPEN,
)
from pipeline.matching import Matches
from pipeline.wiki import Wiki

_MAX_DEPTH = 40
"""Calls nested deeper than this show nothing."""
FORMULA = "[formula]"
"""Stands for a formula when formulas are not kept."""
_GAP_SHOWS_AFTER = frozenset(" ([（【「『“„«" + SOFT)
_SCHEME = re.compile(r"(?i)(?:https?|ftps?|sftp|git|svn|irc|ssh|telnet|gopher)$")
_PIPE_TRICK = re.compile(r"\s*[(（][^()（）]*[)）]$|,\s.*$")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]*|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_VARIANT_RULE = re.compile(r"\s*([A-Za-z][A-Za-z-]*)\s*:\s*([^;]*)(?:;|$)")


class Page:
    """One page in the work: its tokens, the texts between them, and where constructs end."""

    def __init__(self, wikitext: str, wiki: Wiki) -> None:
        self.parts = wiki.pattern.split(wikitext)
        self.texts = self.parts[0::2]
        self.tokens = self.parts[1::2]
        self.kinds = markup.kinds_of(self.tokens)
        self.wiki = wiki
        self.matches = Matches(self.tokens, self.kinds, self._is_file_link)
        self.matches.run()
        self.close = self.matches.close
        self.depth = 0

    def text(self) -> str:
        """The whole page, rendered."""
        out = [self.texts[0]]
        self.render(0, len(self.tokens), None, out)
        return "".join(out)

    # The loop. `out` takes the pieces of text; a token that ends the range gets `tail` as its following text.
    def render(self, at: int, stop: int, tail: str | None, out: list[str]) -> None:  # noqa: C901, PLR0912, PLR0915
        """Appends the text of tokens ``at`` to ``stop`` - 1 and of what follows each of them."""
        texts, tokens, kinds, close, append = self.texts, self.tokens, self.kinds, self.close, out.append
        while at < stop:
            kind = kinds[at]
            if kind <= LINE or kind == TAG_CLOSE:
                if kind or TEXTS[tokens[at]]:
                    append(TEXTS[tokens[at]])
            elif kind == LINK_OPEN:
                at = self._link(at, stop, out)
                if at < 0:  # the text after the bracket is done with
                    at = -at
                    continue
            elif kind == BRACKET_CLOSE:
                if self.matches.spare.get(at) == 1:
                    append("]")
            elif kind == TEMPLATE_OPEN or kind == PARAMETER_OPEN:
                end = close.get(at, stop + 1)
                if end > stop:
                    append(HOLE)
                    at = self._end_of_unclosed(at, stop)
                    continue
                if kind == TEMPLATE_OPEN:
                    self._template(at, end, out)
                else:
                    self._parameter(at, end, out)
                if end == stop:
                    return
                at = end
            elif kind == COMMENT_OPEN or kind == REFERENCE_OPEN or kind == RAW_OPEN:
                end = close.get(at, stop)
                if end >= stop:
                    name = TAG_NAMES.get(tokens[at])
                    if name not in _SHOWN_UNCLOSED:
                        at = self._end_of_unclosed(at, stop)
                        continue
                else:
                    if kind == RAW_OPEN:
                        self._raw(at, end, out)
                    elif kind == REFERENCE_OPEN:
                        self._gap(out)
                    at = end
            elif kind == SILENT:
                self._gap(out)
            elif kind == TABLE_OPEN:
                append("\n")
                end = close.get(at, stop + 1)
                if end > stop:
                    at = self._end_of_unclosed(at, stop)
                    continue
                if end == stop:
                    return
                at = end
            elif kind == URL_OPEN:
                if close.get(at) == at + 1 and not texts[at + 1].strip():
                    self._gap(out)
                    at += 1
            elif kind == COMMENT_CLOSE:
                append(tokens[at])
            elif kind == BARE_URL:
                self._bare_url(tokens[at], out)
            elif kind == CELL or kind == HEADER_CELL:
                append("\n")
                if kind == HEADER_CELL and "|" not in texts[at + 1] and "!!" not in texts[at + 1]:
                    append("!")
                else:
                    at = self._end_of_line(at, stop)
                    continue
            elif kind == HIDDEN_OPEN:
                append(TEXTS[tokens[at]])
                hidden_end = self.matches.end_of_hidden(at)
                if hidden_end is not None:
                    at = min(hidden_end, stop)
                    continue
            elif kind == VARIANT_OPEN:
                end = close.get(at, stop)
                if end < stop:
                    self._variant(at, end, out)
                    at = end
                else:
                    append("-")
            elif kind == POEM_OPEN:
                at = self._poem(at, stop, out)
            at += 1
            text = texts[at] if at < stop or tail is None else tail
            if text:
                append(text)

    def _gap(self, out: list[str]) -> None:
        if out[-1][-1:] in _GAP_SHOWS_AFTER:
            out.append(GAP)

    # --- links ---

    def _is_file_link(self, at: int) -> bool:
        prefix, colon, rest = self.texts[at + 1].partition(":")
        return bool(colon) and self.wiki.hides_link(prefix, rest.partition("|")[0])

    def _link(self, at: int, stop: int, out: list[str]) -> int:
        """Renders ``[[`` and the text after it; returns the next token to go on with, negated, or ``at``."""
        if len(self.tokens[at]) == 3:
            out.append("[")
        end = self.close.get(at, stop)
        text = self.texts[at + 1]
        target, bar, label = text.partition("|")
        colon = target.find(":")
        if colon > 0 and self.wiki.hides_link(target[:colon], target):
            if end >= stop:
                return -self._end_of_line(at, stop)
            self._gap(out)
            return end
        if end >= stop:
            # Never closed: the brackets go, the target if there is a label, and one bracket that was meant to close.
            out.append(label if bar else text)
            if self.matches.spare.get(at + 1) == 1:
                del self.matches.spare[at + 1]
            return -(at + 1)
        if bar:
            if not label and end == at + 1:
                label = _PIPE_TRICK.sub("", target[colon + 1 :].strip())
            out.append(label)
        elif end == at + 1:
            out.append(text[1:] if colon == 0 else text)
        else:
            return -self._long_target(at, end, out)
        return -(at + 1)

    def _long_target(self, at: int, end: int, out: list[str]) -> int:
        """A link whose text holds other tokens: what stands after the first bar, or all of it."""
        place = at + 1
        while place < end:
            is_bar = self.kinds[place] == TEMPLATE_OPEN and self.texts[place + 1].strip() == "!"
            place = self.close.get(place, place) + 1
            if is_bar:
                out.append(self.texts[place])
                return place
            if place <= end and "|" in self.texts[place]:
                out.append(self.texts[place].partition("|")[2])
                return place
        out.append(self.texts[at + 1].removeprefix(":"))
        return at + 1

    def _bare_url(self, token: str, out: list[str]) -> None:
        scheme = _SCHEME.search(out[-1][-8:])
        if scheme is None:
            out.append(token)
            return
        out[-1] = out[-1][: -len(scheme.group())]
        self._gap(out)
        address = token.rstrip(".,;:!?)")
        out.append(token[len(address) :])

    # --- templates ---

    def _template(self, at: int, end: int, out: list[str]) -> None:
        text = self._call(at, end)
        if text is None:
            out.append(HOLE)
        elif text:
            out.append(text)
        else:
            self._gap(out)

    def _call(self, at: int, end: int) -> str | None:
        rule, colon = self.wiki.rule_of_call(self.texts, self.tokens, at)
        if rule is None:
            return None
        if isinstance(rule, str):
            return rule
        name, *arguments = split_arguments(self, at, end)
        if colon:
            arguments.insert(0, Argument(name.text[colon:], name.start, name.stop, name.tail))
        return rule(CallArguments(self, name.text.strip(), arguments, is_function=bool(colon)))

    def _parameter(self, at: int, end: int, out: list[str]) -> None:
        """``{{{name|default}}}``: a page is not called with arguments, so the default is shown."""
        arguments = split_arguments(self, at, end)
        if len(arguments) > 1:
            out.append(self.argument_text(arguments[1]))

    def argument_text(self, argument: "Argument") -> str:
        """The rendered text of an argument."""
        if argument.start == argument.stop:
            return argument.text
        return self._inner_text(argument.text, argument.start, argument.stop, argument.tail)

    def _inner_text(self, text: str, start: int, stop: int, tail: str | None = None) -> str:
        """``text`` and the rendered tokens ``start`` to ``stop`` - 1; nothing too deep inside others."""
        if self.depth >= _MAX_DEPTH:
            return ""
        self.depth += 1
        out = [text]
        self.render(start, stop, tail, out)
        self.depth -= 1
        return "".join(out)

    # --- tags ---

    def _raw(self, at: int, end: int, out: list[str]) -> None:
        name = TAG_NAMES[self.tokens[at]]
        raw = "".join(self.parts[2 * at + 2 : 2 * end + 1])
        if name in ("math", "chem", "ce"):
            formula = " ".join(_ENTITY.sub(_decode, raw).split())
            is_tex = name == "math"
            out.append(FORMULA if is_tex and formula and not self.wiki.keeps_formulas else formula)
        elif name in ("nowiki", "pre"):
            lines = _ENTITY.sub(_decode, raw).split("\n")
            out.append((SOFT if name == "nowiki" else "\n").join(lines))
            out.append("\n" if name == "pre" else "")
        elif name in ("syntaxhighlight", "source") and "\n" not in raw.strip():
            # Code within a sentence; a listing is no text.
            out.append(_ENTITY.sub(_decode, raw).strip())
        else:
            self._gap(out)

    def _poem(self, at: int, stop: int, out: list[str]) -> int:
        """Lines of a poem are paragraphs; returns the closing tag, or ``at`` where none is."""
        end = self.matches.end_of_hidden(at)
        if end is None or end >= stop:
            return at
        verse = self._inner_text(self.texts[at + 1], at + 1, end)
        out.append("\n" + verse.replace(SOFT, "\n") + "\n")
        return end

    def _variant(self, at: int, end: int, out: list[str]) -> None:
        """``-{flags|zh-hans:a;zh-hant:b}-``: the first variant of the wiki's order, or the text as it is."""
        text = self._inner_text(self.texts[at + 1], at + 1, end)
        flags, bar, rest = text.partition("|")
        if bar:
            if {flag.strip() for flag in flags.split(";")} & {"H", "T", "-", "N"}:
                return
            text = rest
        choices = {code.lower(): choice.strip() for code, choice in _VARIANT_RULE.findall(text)}
        shown = next((choices[code] for code in self.wiki.variants if code in choices), None)
        out.append(text if shown is None else shown)

    # --- unclosed ---

    def _end_of_unclosed(self, at: int, stop: int) -> int:
        """The token where the paragraph of an opening without an end is over."""
        is_template = self.kinds[at] in (TEMPLATE_OPEN, PARAMETER_OPEN)
        is_reference = self.kinds[at] == REFERENCE_OPEN
        at += 1
        while at < stop:
            kind = self.kinds[at]
            if kind == LINE or (is_reference and kind == REFERENCE_OPEN):
                return at
            if kind == CELL and not is_template and self.tokens[at].count("\n") > 1:
                return at
            # Arguments stand on lines that start with a bar, so another line is text again.
            if is_template and self.tokens[at] == "\n":
                return at
            at = self.close.get(at, at) + 1
        return stop

    def _end_of_line(self, at: int, stop: int) -> int:
        at += 1
        while at < stop and self.tokens[at][0] != "\n":
            at = self.close.get(at, at) + 1
        return min(at, stop)


_SHOWN_UNCLOSED = frozenset(
    ["nowiki", "pre", "syntaxhighlight", "source", "math", "chem", "ce", "references"]
)


def _decode(match: re.Match[str]) -> str:
    entity = match.group()
    return markup.decode_entity(entity)
