"""Renders the template calls of a page: rules, expansion of the wiki's own templates, and page names."""

import re
from abc import ABC, abstractmethod
from collections import Counter

from pipeline.wikitext.arguments import Argument, CallArguments, split_arguments
from pipeline.wikitext.markup import (
    BLANKS,
    CELL,
    FORMULA_CLOSE,
    FORMULA_OPEN,
    GAP,
    HOLE,
    LINE,
    LINE_MARKS,
    PARAMETER_OPEN,
    REFERENCE_OPEN,
    SOFT,
    TEMPLATE_OPEN,
)
from pipeline.wikitext.matching import ParsedText
from pipeline.wikitext.templates.functions import NAMED_FUNCTIONS
from pipeline.wikitext.templates.rule import Arguments, ModuleCall, PageName, TemplateBody
from pipeline.wikitext.wiki import FUNCTION, Call, Wiki

_MAX_DEPTH = 40
"""Maximum nesting of calls. Deeper calls show nothing."""
_MAX_CALLS = 20_000
"""Maximum number of expanded templates on a page, including those that templates call."""
_MAX_CHARS = 4_000_000
"""Maximum total characters of the expansions and their arguments on a page."""
_BRACES = frozenset((TEMPLATE_OPEN, PARAMETER_OPEN))
_LINE_FEEDS = f"\n{SOFT}"
_MISSING_ARGUMENT = re.compile(r"\{\{\{[^{}]*\}\}\}")
_TABLE = re.compile(r"(?m)^[ \t:]*\{\||<table\b")
_TEX_HTML = re.compile(r"<span\b[^<>]*\btexhtml\b")
"""Matches the start of a template body that shows a formula in HTML."""
_GAP_SHOWS_AFTER = frozenset(" ([（【「『“„«,;，；、،/" + SOFT)


class Expansion:
    """The remaining budget for expanding templates on one page, and what decided its calls.

    Templates may call each other endlessly, or double their text at each level. So calls and characters are
    counted, and a call beyond the limit is a hole.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.calls_left = _MAX_CALLS
        self.chars_left = _MAX_CHARS
        self.open: list[str] = []
        """Templates in expansion, outermost first."""
        self.decided: Counter[str] = Counter()
        """Calls of the page itself by what decided them."""
        self.templates: set[str] = set()
        """Folded names of the templates that were looked up in the table of the wiki."""
        self.refused = 0
        """Calls beyond a limit, and recursive calls."""

    def enter(self, name: str) -> bool:
        """Whether the template ``name`` may be expanded. If so, the caller later pops it from ``open``."""
        if name in self.open or len(self.open) >= _MAX_DEPTH or self.calls_left <= 0 or self.chars_left <= 0:
            self.refused += 1
            return False
        self.calls_left -= 1
        self.open.append(name)
        return True

    def expanded(self, body: TemplateBody) -> None:
        """A hook for subclasses, called with every expanded body."""

    def unknown(self, name: str) -> None:
        """A hook for subclasses, called with the name of every unknown template or function in a body."""


class TemplateCalls(ABC):
    """The tokens of a page, and the rendering of its calls. `pipeline.wikitext.rendering.Page` does the rest.

    A page may be the body of a template, with the arguments of its call as ``frame``.
    """

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

    @abstractmethod
    def render(self, at: int, stop: int, tail: str | None, out: list[str]) -> None:
        """Appends to ``out`` the text of tokens ``at`` to ``stop`` - 1 and the text after each of them.

        ``tail``, if given, replaces the text after the last one.
        """

    def _gap(self, out: list[str]) -> None:
        if out[-1][-1:] in _GAP_SHOWS_AFTER:
            out.append(GAP)

    def _template(self, at: int, stop: int, out: list[str]) -> int:
        end = self.close.get(at, stop + 1)
        if end > stop:
            out.append(HOLE)
            return -self._end_of_unclosed(at, stop)
        text = self._call(at, end)
        if text is None:
            out.append(HOLE)
        elif text:
            # Text that begins with a list starts a new line (MediaWiki: braceSubstitution).
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
        result = call.shown
        if result is None and self.frame is not None:
            self.expansion.unknown(name or self.texts[at + 1].partition("|")[0].strip())
        if result is None or isinstance(result, str):
            return result
        if isinstance(result, PageName):
            return self._page_name(result.word)
        first, *arguments = split_arguments(self.texts, self.kinds, self.close, at, end)
        if call.colon:
            arguments.insert(0, first._replace(text=first.text[call.colon :]))
        if isinstance(result, ModuleCall):
            return self._invoke(result, arguments)
        unnamed = 0 if not call.colon else 1 if result in NAMED_FUNCTIONS else len(arguments)
        call_arguments = CallArguments(self.argument_text, first.text.strip(), arguments, unnamed)
        if isinstance(result, TemplateBody):
            return self._expand(result, call_arguments)
        return result(call_arguments)

    def _name_is_computed(self, at: int, end: int) -> bool:
        """Whether the name contains a call or a parameter: ``{{lang-{{{1}}}|...}}``."""
        return at + 1 < end and "|" not in self.texts[at + 1] and ":" not in self.texts[at + 1]

    def _computed_call(self, name: str) -> Call:
        call = self.wiki.call_of(name) if HOLE not in name else Call(None)
        return call._replace(shown=None) if call.colon else call

    def _expand(self, body: TemplateBody, arguments: Arguments) -> str | None:
        """The text of one of the wiki's templates, rendered with the arguments of the call."""
        expansion = self.expansion
        if not expansion.enter(body.name):
            return None
        expansion.expanded(body)
        text = type(self)(self.wiki.parse_body(body.wikitext), self.wiki, expansion, arguments).text()
        expansion.open.pop()
        expansion.chars_left -= len(text)
        if expansion.chars_left < 0:
            expansion.refused += 1
            return None
        if "{{{" in text:
            text = _MISSING_ARGUMENT.sub(HOLE, text)
        stripped = text.strip(_LINE_FEEDS)
        if not stripped.strip(BLANKS):
            # A template that expands to a table separates the paragraphs around it.
            return "\n" if "\n" in text and _TABLE.search(body.wikitext) else ""
        start = text.index(stripped)
        if _TEX_HTML.match(body.wikitext):
            return FORMULA_OPEN + stripped + FORMULA_CLOSE
        before = "\n" if "\n" in text[:start] or stripped[0] in LINE_MARKS else ""
        return before + stripped + ("\n" if "\n" in text[start + len(stripped) :] else "")

    def _invoke(self, module: ModuleCall, arguments: list[Argument]) -> str | None:
        """Calls a module with the arguments after its function's name, or else those of the template."""
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
        """``{{{name|default}}}`` shows an argument of the call. A page, without a call, shows the default."""
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
        """``text`` and the rendered tokens ``start`` to ``stop`` - 1, or nothing if nested too deeply."""
        if self.depth >= _MAX_DEPTH:
            return ""
        self.depth += 1
        out = [text]
        self.render(start, stop, tail, out)
        self.depth -= 1
        return "".join(out)

    def _end_of_unclosed(self, at: int, stop: int) -> int:
        """The token at which the paragraph of an unclosed opening ends."""
        is_template = self.kinds[at] in (TEMPLATE_OPEN, PARAMETER_OPEN)
        is_reference = self.kinds[at] == REFERENCE_OPEN
        at += 1
        while at < stop:
            kind = self.kinds[at]
            if kind == LINE or (is_reference and kind == REFERENCE_OPEN):
                return at
            if kind == CELL and not is_template and self.tokens[at].count("\n") > 1:
                return at
            # Lines with arguments start with a bar, so any other line is text again.
            if is_template and self.tokens[at] == "\n":
                return at
            at = self.close.get(at, at) + 1
        return stop

    def _end_of_line(self, at: int, stop: int) -> int:
        at += 1
        while at < stop and self.tokens[at][0] != "\n":
            at = self.close.get(at, at) + 1
        return min(at, stop)
