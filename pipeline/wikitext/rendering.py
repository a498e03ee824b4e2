"""Renders the tokens of a page to text with marks (`markup`), in one loop."""

import re
from collections.abc import Callable

from pipeline.wikitext import markup
from pipeline.wikitext.markup import (
    ASIDE,
    BRACKET_CLOSE,
    FORMULA_CLOSE,
    FORMULA_OPEN,
    FORMULA_TAGS,
    LINE,
    LINK_OPEN,
    SOFT,
    TAG_CLOSE,
    TAG_NAMES,
    TEMPLATE_OPEN,
    TEXTS,
)
from pipeline.wikitext.template_calls import TemplateCalls

_PLACEHOLDER = "[formula]"
"""Replaces a formula when formulas are not kept."""
_SHOWN_AS_PICTURE = frozenset(("hiero", "score", "maplink"))
_SCHEME = re.compile(r"(?i)(?:https?|ftps?|sftp|git|svn|irc|ssh|telnet|gopher)$")
_PIPE_TRICK = re.compile(r"\s*[(（][^()（）]*[)）]$|,\s.*$")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]*|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_VARIANT_RULE = re.compile(r"\s*([A-Za-z][A-Za-z-]*)\s*:\s*([^;]*)(?:;|$)")


class Page(TemplateCalls):
    """Renders a page or the body of a template. A handler renders each kind of token.

    A handler returns the last token that it has consumed. It may also return, negated, the token to continue
    with if it has handled the text before that token.
    """

    def render(self, at: int, stop: int, tail: str | None, out: list[str]) -> None:
        """Appends to ``out`` the text of tokens ``at`` to ``stop`` - 1 and the text after each of them.

        ``tail``, if given, replaces the text after the last one.
        """
        texts, tokens, kinds, spare = self.texts, self.tokens, self.kinds, self.spare
        while at < stop:
            kind = kinds[at]
            if kind <= LINE or kind == TAG_CLOSE:
                shown = TEXTS[tokens[at]]
                if shown:
                    out.append(shown)
            elif kind == LINK_OPEN:
                at = self._link(at, stop, out)
            elif kind != BRACKET_CLOSE:
                at = _HANDLERS[kind](self, at, stop, out)
            elif spare.get(at) == 1:
                out.append("]")
            if at < 0:
                at = -at
                continue
            at += 1
            if at > stop:
                return
            text = texts[at] if at < stop or tail is None else tail
            if text:
                out.append(text)

    def _show_gap(self, at: int, _: int, out: list[str]) -> int:
        self._gap(out)
        return at

    def _show_as_written(self, at: int, _: int, out: list[str]) -> int:
        out.append(self.tokens[at])
        return at

    def _show_line(self, at: int, _: int, out: list[str]) -> int:
        out.append("\n")
        return at

    def _show_nothing(self, at: int, _stop: int, _out: list[str]) -> int:
        return at

    # --- tables ---

    def _table(self, at: int, stop: int, out: list[str]) -> int:
        out.append("\n")
        end = self.close.get(at, stop + 1)
        return end if end <= stop else -self._end_of_unclosed(at, stop)

    def _cell(self, at: int, stop: int, out: list[str]) -> int:
        """A table's line outside a table, which shows nothing."""
        out.append("\n")
        return -self._end_of_line(at, stop)

    def _header_cell(self, at: int, stop: int, out: list[str]) -> int:
        """A header cell outside a table, if it looks like one. "!Kung" at the start of a line is a word."""
        if "|" in self.texts[at + 1] or "!!" in self.texts[at + 1]:
            return self._cell(at, stop, out)
        out.append("\n!")
        return at

    # --- links ---

    def _link(self, at: int, stop: int, out: list[str]) -> int:
        """Renders ``[[`` and the text after it."""
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
            # Unclosed. Drop the brackets, a target with a label, and one bracket that was meant to close.
            out.append(label if bar else text)
            if self.spare.get(at + 1) == 1:
                del self.spare[at + 1]
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
        """A link whose text contains other tokens. Shows the text after the first bar, or all of it."""
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

    def _url(self, at: int, _: int, out: list[str]) -> int:
        """``[http://... label]`` shows its label. Without a label, MediaWiki shows a number."""
        if self.close.get(at) == at + 1 and not self.texts[at + 1].strip():
            self._gap(out)
            return at + 1
        return at

    def _bare_url(self, at: int, _: int, out: list[str]) -> int:
        token = self.tokens[at]
        scheme = _SCHEME.search(out[-1][-8:])
        if scheme is None:
            out.append(token)
            return at
        out[-1] = out[-1][: -len(scheme.group())]
        self._gap(out)
        # As in MediaWiki, a URL with an opening bracket may end with a closing one.
        marks = ".,;:!?" if "(" in token else ".,;:!?)"
        out.append(token[len(token.rstrip(marks)) :])
        return at

    # --- tags ---

    def _comment(self, at: int, stop: int, _: list[str]) -> int:
        end = self.close.get(at, stop)
        return end if end < stop else -self._end_of_unclosed(at, stop)

    def _reference(self, at: int, stop: int, out: list[str]) -> int:
        end = self._comment(at, stop, out)
        if end >= 0:
            self._gap(out)
        return end

    def _raw(self, at: int, stop: int, out: list[str]) -> int:
        name = TAG_NAMES[self.tokens[at]]
        end = self.close.get(at, stop)
        if end >= stop:
            return at if name in _SHOWN_UNCLOSED else -self._end_of_unclosed(at, stop)
        raw = "".join(self.parts[2 * at + 2 : 2 * end + 1])
        if name in FORMULA_TAGS:
            formula = " ".join(_ENTITY.sub(_decode, raw).split())
            if name == "math" and formula and not self.wiki.keeps_formulas:
                formula = _PLACEHOLDER
            out.append(FORMULA_OPEN + formula + FORMULA_CLOSE)
        elif name in ("nowiki", "pre"):
            lines = _ENTITY.sub(_decode, raw).split("\n")
            out.append(SOFT.join(lines) if name == "nowiki" else "\n".join(lines) + "\n")
        elif name in ("syntaxhighlight", "source") and "\n" not in raw.strip():
            # Code within a sentence is text, but a listing is not.
            out.append(_ENTITY.sub(_decode, raw).strip())
        elif name in _SHOWN_AS_PICTURE:
            out.append(ASIDE)
        else:
            self._gap(out)
        return end

    def _hidden(self, at: int, stop: int, out: list[str]) -> int:
        out.append(TEXTS[self.tokens[at]])
        end = self.matches.end_of_hidden(at)
        return at if end is None else -min(end, stop)

    def _poem(self, at: int, stop: int, out: list[str]) -> int:
        """Renders each line of a poem as a paragraph."""
        end = self.matches.end_of_hidden(at)
        if end is None or end >= stop:
            return at
        verse = self._inner_text(self.texts[at + 1], at + 1, end)
        out.append("\n" + verse.replace(SOFT, "\n") + "\n")
        return end

    def _variant(self, at: int, stop: int, out: list[str]) -> int:
        """``-{flags|zh-hans:a;zh-hant:b}-`` shows the wiki's preferred variant, or plain text as it is."""
        end = self.close.get(at, stop)
        if end >= stop:
            out.append("-")
            return at
        text = self._inner_text(self.texts[at + 1], at + 1, end)
        flags, bar, rest = text.partition("|")
        if bar:
            if {flag.strip() for flag in flags.split(";")} & {"H", "T", "-", "N"}:
                return end
            text = rest
        choices = {code.lower(): choice.strip() for code, choice in _VARIANT_RULE.findall(text)}
        shown = next((choices[code] for code in self.wiki.variants if code in choices), None)
        out.append(text if shown is None else shown)
        return end


_SHOWN_UNCLOSED = frozenset(
    ["nowiki", "pre", "syntaxhighlight", "source", "math", "chem", "ce", "references"]
)
_HANDLERS: dict[int, Callable[[Page, int, int, list[str]], int]] = {
    markup.CELL: Page._cell,
    markup.HEADER_CELL: Page._header_cell,
    markup.TABLE_OPEN: Page._table,
    markup.TABLE_CLOSE: Page._show_line,
    markup.URL_OPEN: Page._url,
    markup.BARE_URL: Page._bare_url,
    markup.TEMPLATE_OPEN: Page._template,
    markup.PARAMETER_OPEN: Page._parameter,
    markup.BRACE_CLOSE: Page._show_nothing,
    markup.RAW_OPEN: Page._raw,
    markup.REFERENCE_OPEN: Page._reference,
    markup.HIDDEN_OPEN: Page._hidden,
    markup.POEM_OPEN: Page._poem,
    markup.COMMENT_OPEN: Page._comment,
    markup.COMMENT_CLOSE: Page._show_as_written,
    markup.VARIANT_OPEN: Page._variant,
    markup.VARIANT_CLOSE: Page._show_nothing,
    markup.SILENT: Page._show_gap,
}


def _decode(match: re.Match[str]) -> str:
    return markup.decode_entity(match.group())
