"""The rendering loop: tokens of a page to text with marks (`markup`)."""

import re
from collections import Counter
from collections.abc import Callable

from pipeline.wikitext import markup
from pipeline.wikitext.arguments import Argument, CallArguments, split_arguments
from pipeline.wikitext.markup import (
    ASIDE,
    BLANKS,
    BRACKET_CLOSE,
    CELL,
    FORMULA_CLOSE,
    FORMULA_OPEN,
    FORMULA_TAGS,
    GAP,
    HOLE,
    LINE,
    LINE_MARKS,
    LINK_OPEN,
    PARAMETER_OPEN,
    REFERENCE_OPEN,
    SOFT,
    TAG_CLOSE,
    TAG_NAMES,
    TEMPLATE_OPEN,
    TEXTS,
)
from pipeline.wikitext.matching import ParsedText
from pipeline.wikitext.templates.functions import NAMED_FUNCTIONS
from pipeline.wikitext.templates.rule import Arguments, ModuleCall, PageName, TemplateBody
from pipeline.wikitext.wiki import FUNCTION, Call, Wiki

_MAX_DEPTH = 40
"""Calls nested deeper than this show nothing."""
MAX_CALLS = 20_000
"""Templates that are expanded on one page, those that templates call included."""
MAX_CHARS = 4_000_000
"""Characters that expansions and their arguments may add up to on one page."""
_PLACEHOLDER = "[formula]"
"""Stands for a formula when formulas are not kept."""
_BRACES = frozenset((TEMPLATE_OPEN, PARAMETER_OPEN))
_LINE_FEEDS = f"\n{SOFT}"
_MISSING_ARGUMENT = re.compile(r"\{\{\{[^{}]*\}\}\}")
_TABLE = re.compile(r"(?m)^[ \t:]*\{\||<table\b")
_TEX_HTML = re.compile(r"<span\b[^<>]*\btexhtml\b")
"""Begins the body of a template that shows a formula in HTML."""
_SHOWN_AS_PICTURE = frozenset(("hiero", "score", "maplink"))
_GAP_SHOWS_AFTER = frozenset(" ([（【「『“„«,;，；、،/" + SOFT)
_SCHEME = re.compile(r"(?i)(?:https?|ftps?|sftp|git|svn|irc|ssh|telnet|gopher)$")
_PIPE_TRICK = re.compile(r"\s*[(（][^()（）]*[)）]$|,\s.*$")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]*|#[0-9]+|#[xX][0-9A-Fa-f]+);")
_VARIANT_RULE = re.compile(r"\s*([A-Za-z][A-Za-z-]*)\s*:\s*([^;]*)(?:;|$)")


class Expansion:
    """What the expansion of templates may still cost on one page, and what decided its calls.

    Templates may call each other without end, or double their text at each level: calls and characters
    are counted, and a call beyond the limit is a hole.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.calls_left = MAX_CALLS
        self.chars_left = MAX_CHARS
        self.open: list[str] = []
        """Templates that are being expanded, the outermost first."""
        self.decided: Counter[str] = Counter()
        """Calls of the page itself by what decided them."""
        self.templates: set[str] = set()
        """Folded names of the templates that were looked up in the table of the wiki."""
        self.refused = 0
        """Calls beyond a limit, and calls of a template by itself."""

    def enter(self, name: str) -> bool:
        """Whether the template ``name`` may be expanded now; the caller then takes it off ``open``."""
        if name in self.open or len(self.open) >= _MAX_DEPTH or self.calls_left <= 0 or self.chars_left <= 0:
            self.refused += 1
            return False
        self.calls_left -= 1
        self.open.append(name)
        return True

    def expanded(self, body: TemplateBody) -> None:
        """Called with every body that is expanded, for who wants to know."""

    def unknown(self, name: str) -> None:
        """Called with the name of every template or function within a body that has no text that we know."""


class Page:
    """One page in the work, or the body of a template with the arguments of its call as ``frame``."""

    def __init__(
        self, parsed: ParsedText, wiki: Wiki, expansion: Expansion, frame: Arguments | None = None
    ) -> None:
        self.parts, self.texts, self.tokens = parsed.parts, parsed.texts, parsed.tokens
        self.kinds = parsed.kinds
        self.wiki = wiki
        self.matches = parsed.matches
        self.spare = parsed.matches.spare if frame is None else dict(parsed.matches.spare)
        self.close = self.matches.close
        self.expansion = expansion
        self.frame = frame
        self.depth = 0

    def text(self) -> str:
        """The whole page, rendered."""
        out = [self.texts[0]]
        self.render(0, len(self.tokens), None, out)
        return "".join(out)

    def render(self, at: int, stop: int, tail: str | None, out: list[str]) -> None:
        """Appends to ``out`` the text of tokens ``at`` to ``stop`` - 1 and what follows each of them.

        ``tail``, if given, takes the place of the text that follows the last one.
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
            # A handler gives the last token that it has used up, or, negated, the one to go on with when the
            # text before that is done with.
            if at < 0:
                at = -at
                continue
            at += 1
            if at > stop:
                return
            text = texts[at] if at < stop or tail is None else tail
            if text:
                out.append(text)

    def _gap(self, out: list[str]) -> None:
        if out[-1][-1:] in _GAP_SHOWS_AFTER:
            out.append(GAP)

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
        """A table's line outside of any table: nothing to read."""
        out.append("\n")
        return -self._end_of_line(at, stop)

    def _header_cell(self, at: int, stop: int, out: list[str]) -> int:
        """The same, if it looks like one; "!Kung" at the start of a line is a word."""
        if "|" in self.texts[at + 1] or "!!" in self.texts[at + 1]:
            return self._cell(at, stop, out)
        out.append("\n!")
        return at

    # --- links ---

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
            # Never closed: the brackets go, a target with a label, and one bracket that was meant to close.
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
        """A link whose text holds other tokens: the text after the first bar, or all of it."""
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
        """``[http://... label]`` shows its label, without one it shows a number."""
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
        # As in MediaWiki, an address with an opening bracket may end with a closing one.
        marks = ".,;:!?" if "(" in token else ".,;:!?)"
        out.append(token[len(token.rstrip(marks)) :])
        return at

    # --- templates ---

    def _template(self, at: int, stop: int, out: list[str]) -> int:
        end = self.close.get(at, stop + 1)
        if end > stop:
            out.append(HOLE)
            return -self._end_of_unclosed(at, stop)
        text = self._call(at, end)
        if text is None:
            out.append(HOLE)
        elif text:
            # A text that begins with a list starts a new line (MediaWiki: braceSubstitution).
            out.append("\n" + text if text[0] in LINE_MARKS else text)
        else:
            self._gap(out)
        return end

    def _call(self, at: int, end: int) -> str | None:
        name = ""
        if self.kinds[at + 1] in _BRACES and self._name_is_computed(at, end):
            name = self.argument_text(split_arguments(self.texts, self.kinds, self.close, at, end)[0])
            call = self._computed_call(name)
        else:
            call = self.wiki.call(self.texts, self.tokens, at)
        if call.template is not None:
            self.expansion.templates.add(call.template)
        if self.frame is None and call.decided_by is not FUNCTION:
            self.expansion.decided[call.decided_by] += 1
        shown = call.shown
        if shown is None and self.frame is not None:
            self.expansion.unknown(name or self.texts[at + 1].partition("|")[0].strip())
        if shown is None or isinstance(shown, str):
            return shown
        if isinstance(shown, PageName):
            return self._page_name(shown.word)
        first, *arguments = split_arguments(self.texts, self.kinds, self.close, at, end)
        if call.colon:
            arguments.insert(0, first._replace(text=first.text[call.colon :]))
        if isinstance(shown, ModuleCall):
            return self._invoke(shown, arguments)
        unnamed = 0 if not call.colon else 1 if shown in NAMED_FUNCTIONS else len(arguments)
        given = CallArguments(self.argument_text, first.text.strip(), arguments, unnamed)
        return self._expand(shown, given) if isinstance(shown, TemplateBody) else shown(given)

    def _name_is_computed(self, at: int, end: int) -> bool:
        """``{{lang-{{{1}}}|...}}``: the name contains a call or a parameter."""
        return at + 1 < end and "|" not in self.texts[at + 1] and ":" not in self.texts[at + 1]

    def _computed_call(self, name: str) -> Call:
        call = self.wiki.call_of(name) if HOLE not in name else Call(None)
        return call._replace(shown=None) if call.colon else call

    def _expand(self, body: TemplateBody, arguments: Arguments) -> str | None:
        """The text of a template of the wiki, rendered with the arguments of the call."""
        expansion = self.expansion
        if not expansion.enter(body.name):
            return None
        expansion.expanded(body)
        text = Page(self.wiki.parse_body(body.wikitext), self.wiki, expansion, arguments).text()
        expansion.open.pop()
        expansion.chars_left -= len(text)
        if expansion.chars_left < 0:
            expansion.refused += 1
            return None
        if "{{{" in text:
            text = _MISSING_ARGUMENT.sub(HOLE, text)
        shown = text.strip(_LINE_FEEDS)
        if not shown.strip(BLANKS):
            # A template that expands to a table separates the paragraphs around it.
            return "\n" if "\n" in text and _TABLE.search(body.wikitext) else ""
        start = text.index(shown)
        if _TEX_HTML.match(body.wikitext):
            return FORMULA_OPEN + shown + FORMULA_CLOSE
        before = "\n" if "\n" in text[:start] or shown[0] in LINE_MARKS else ""
        return before + shown + ("\n" if "\n" in text[start + len(shown) :] else "")

    def _invoke(self, module: ModuleCall, arguments: list[Argument]) -> str | None:
        """A module has the arguments after its function's name, or else those of the template around it."""
        own = arguments[2:]
        if self.frame is not None and not own:
            return module.rule(self.frame)
        return module.rule(CallArguments(self.argument_text, "", own))

    def _page_name(self, word: str) -> str | None:
        title = self.expansion.title
        if not title:
            return None
        if word.startswith(("FULL", "SUBJECT", "ARTICLE")):
            name = title
        else:
            namespace = self.wiki.site.namespace_of_title(title)
            # Articles have no subpages: "AC/DC" is one name.
            name = title.partition(":")[2].strip() if namespace else title
            if namespace and word.startswith("BASE"):
                name = name.rpartition("/")[0] or name
            elif namespace and word.startswith("SUB"):
                name = name.rpartition("/")[2]
            elif namespace and word.startswith("ROOT"):
                name = name.partition("/")[0]
        return name.replace(" ", "_") if word.endswith("NAMEE") else name

    def _parameter(self, at: int, stop: int, out: list[str]) -> int:
        """``{{{name|default}}}``: an argument of the call; a page is not called, so it shows the default."""
        end = self.close.get(at, stop + 1)
        if end > stop:
            return self._template(at, stop, out)
        arguments = split_arguments(self.texts, self.kinds, self.close, at, end)
        text: str | None = None
        if self.frame is not None:
            name = self.argument_text(arguments[0]).strip()
            text = self.frame.given(name)
            if text is None and len(arguments) == 1:
                text = f"{{{{{{{name}}}}}}}"
        if text is None and len(arguments) > 1:
            text = self.argument_text(arguments[1])
        if text and self.expansion.chars_left >= 0:
            if self.frame is not None:
                self.expansion.chars_left -= len(text)
            out.append(text)
        return end

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
            # Code within a sentence; a listing is not text.
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
        """Lines of a poem are paragraphs; returns the closing tag, or ``at`` where none is."""
        end = self.matches.end_of_hidden(at)
        if end is None or end >= stop:
            return at
        verse = self._inner_text(self.texts[at + 1], at + 1, end)
        out.append("\n" + verse.replace(SOFT, "\n") + "\n")
        return end

    def _variant(self, at: int, stop: int, out: list[str]) -> int:
        """``-{flags|zh-hans:a;zh-hant:b}-``: the first variant of the wiki's order, or the text as it is."""
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
