"""Learns what the templates of a wiki show from their own wikitext.

Every template that articles use is expanded three times with marks as arguments: with all that it reads, with
numbered ones only, and with none. The result shows which arguments the template shows, and whether it shows
anything. The result does not depend on the order of the templates, and each expansion is bounded.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.wikitext.markup import (
    ASIDE,
    BLANKS,
    BOLD,
    GAP,
    HOLE,
    INDENT,
    ITALIC,
    LINE_MARKS,
    SOFT,
    SUPERSCRIPT,
    classes_of,
    hidden_class,
)
from pipeline.wikitext.rendering import Page
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_calls import Expansion
from pipeline.wikitext.templates.rule import TemplateBody
from pipeline.wikitext.templates.table import Entry, Kind, TemplateTable, fold_name
from pipeline.wikitext.templates.transclusion import Included
from pipeline.wikitext.wiki import Wiki, WikitextOptions
from pipeline.wikitext.wiki_words import ASIDE_CLASSES

_MAX_ROUNDS = 4
_MAX_HOPS = 5
_MAX_FAMILY = 300
"""Maximum number of templates for one computed name ("lang-" and an argument)."""
_MAX_PROBE_CALLS, _MAX_PROBE_CHARS = 2_000, 400_000
_MODES = ("all", "numbered", "none")
_NUMBERED = tuple("12345")

# Private-use characters around the name of an argument.
_OPEN, _CLOSE = "\ue000", "\ue001"
_ARGUMENT = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_BRACED = re.compile(r"\{\{\{([^{}]*)\}\}\}")
_PAGE_NAME = "PAGENAME"
_LAYOUT = re.compile(f"[{GAP}{SOFT}{ITALIC}{BOLD}{SUPERSCRIPT}{''.join(sorted(LINE_MARKS))}{BLANKS}]+")
_CALLEE = re.compile(r"\{\{\s*([^{}|#\n<>\[\]]{1,255}?)\s*(?=\}\}|\||(\{\{)|\n)")
_OPENING_TAG = re.compile(r"<[A-Za-z][^<>]*>|\{\|[^\n]*")
_REFERENCE = re.compile(r"(?i)<ref[\s/>]|#tag:\s*ref\b")
_QUOTATION = re.compile(r"(?i)<(?:blockquote|q|poem)\b")
# An external link whose address comes from an argument.
_LINKED_ARGUMENT = re.compile(
    r"(?i)(?<!\[)\[\s*(?:(?:https?:)?//[^\s\[\]]*\{\{"
    r"|(?:\{\{#if:[^|\[\]]{0,100}\|\s*)?\{\{\{[^{}|]*(?:url|link|lien|href|web|site|ссылк|адрес|网址|網址|リンク))"
)
_TABLE = re.compile(r"(?m)^[ \t:]*\{\||<table\b")
_BLOCK = re.compile(r"(?i)<(?:div|p|center)\b")
_HIDDEN_LINK = re.compile(r"\[\[[^\[\]|:]{1,40}:")
_CHOICE = re.compile(r"(?i)\{\{\s*#(?:\w*switch|ifeq|ifexpr)\s*:")
_POSITION = re.compile(r"""(?i)\bclass\s*=\s*["']?(?:[\w-]+\s+)*geo(?:-d\w\w)?\b""")
_COORDINATES = re.compile(r"(?i)\{\{\s*#coordinates:")
_WORD = re.compile(r"[^\W\d_]+")
_ARROW = re.compile("[→⇒►▶➔☞]")
_MESSAGE_WORDS, _MESSAGE_CHARS = 6, 60

_FLAVOURS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("navigation", ("nav", "vertical", "hatnote", "dablink", "rellink", "portal", "sister", "toc",
                    "succession", "homonymie", "bandeau")),
    ("maintenance", ("ambox", "tmbox", "ombox", "cmbox", "fmbox", "imbox", "mbox", "noprint", "stub",
                     "metadata", "message", "boilerplate", "error", "template-fact", "inline-template",
                     "need-")),
    ("reference", ("ref", "citation", "cs1", "z3988")),
)  # fmt: skip


@dataclass
class Analysis:
    """A table, and counts from its analysis."""

    table: TemplateTable
    counts: Counter[str] = field(default_factory=Counter)
    """Templates by kind, and by problem: missing, redirect loops, too long, unsure."""


class _Marks:
    """Arguments whose texts are marks with their names."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def given(self, name: str) -> str | None:
        if self._mode == "all" or (self._mode == "numbered" and name.isdecimal()):
            return f"{_OPEN}{name}{_CLOSE}"
        return None

    def get(self, name: str) -> str:
        return self.given(name) or ""

    def positional(self) -> list[str]:
        return [text for number in _NUMBERED if (text := self.given(number))]

    def names(self) -> list[str | None]:
        return [None] * len(self.positional())

    def at(self, place: int) -> str:
        return self.positional()[place]


class _Probe(Expansion):
    """An expansion that records what it could not expand, and the bodies that it expanded."""

    def __init__(self) -> None:
        super().__init__(f"{_OPEN}{_PAGE_NAME}{_CLOSE}")
        self.calls_left, self.chars_left = _MAX_PROBE_CALLS, _MAX_PROBE_CHARS
        self.missing: set[str] = set()
        self.bodies: list[str] = []

    def expanded(self, body: TemplateBody) -> None:
        self.bodies.append(body.wikitext)

    def unknown(self, name: str) -> None:
        # A name that contains an argument is known if the argument is.
        if _OPEN not in name and "{{{" not in name:
            self.missing.add(name)


def learn_templates(
    pages: Mapping[str, Included],
    uses: Mapping[str, int],
    site: SiteInfo,
    back_matter: frozenset[str] = frozenset(),
) -> Analysis:
    """The table of the templates that ``uses`` counts, by folded name.

    ``pages`` are the template pages of the dump. ``back_matter`` are the headings learned from it.
    """
    redirects = {name: page.redirect for name, page in pages.items() if page.redirect}
    aliases = {name: end for name in sorted(redirects) if (end := _end_of_redirects(name, redirects))}
    total = _uses_by_template(pages, uses, aliases)
    bodies = {name: pages[name] for name in _closure(total, pages, aliases)}
    entries = _judge_all(bodies, aliases, site)
    kept = _reachable(total, entries, aliases)
    counts: Counter[str] = Counter(entries[name].kind for name in kept)
    counts["missing"] = sum(name not in pages for name in total)
    counts["redirect_loop"] = len(redirects) - len(aliases)
    counts["too_long"] = sum(bodies[name].too_long for name in kept)
    counts["unsure"] = sum(not entries[name].sure and entries[name].kind != "unknown" for name in kept)
    table = TemplateTable(
        {name: replace(entries[name], uses=total[name]) for name in sorted(kept)},
        {alias: end for alias, end in aliases.items() if end in kept or end in total},
        back_matter,
    )
    return Analysis(table, counts)


def _end_of_redirects(name: str, redirects: Mapping[str, str]) -> str:
    """The final target of a redirect, or '' if the redirects form a loop or are too many."""
    target = redirects[name]
    for _ in range(_MAX_HOPS):
        if target not in redirects:
            return target
        target = redirects[target]
    return ""


def _uses_by_template(
    pages: Mapping[str, Included], uses: Mapping[str, int], aliases: Mapping[str, str]
) -> Counter[str]:
    """Calls of each template, including those through redirects and with other capitalization."""
    wanted = {name.lower() for name in uses if name not in pages}
    lower = {folded: name for name in sorted(pages, reverse=True) if (folded := name.lower()) in wanted}
    total: Counter[str] = Counter()
    for name, count in sorted(uses.items()):
        known = name if name in pages else lower.get(name.lower(), name)
        total[aliases.get(known, known)] += count
    return total


def _callees(body: str, names: list[str]) -> list[str]:
    """Folded names of the templates that ``body`` may call. ``names`` are all names, in order."""
    callees: list[str] = []
    for match in _CALLEE.finditer(body):
        name = fold_name(match[1].removeprefix(":"))
        if match[2]:
            # The rest of the name is computed, so take all names with this beginning.
            start = bisect_left(names, name)
            callees += [other for other in names[start : start + _MAX_FAMILY] if other.startswith(name)]
        else:
            callees.append(fold_name(name.partition(":")[2]) if name.startswith("Template:") else name)
    return callees


def _closure(used: Iterable[str], pages: Mapping[str, Included], aliases: Mapping[str, str]) -> list[str]:
    """The used templates and those that they may call, without redirects, in order."""
    names = sorted(pages)
    closure: set[str] = set()
    queue = sorted(used)
    while queue:
        name = queue.pop()
        name = aliases.get(name, name)
        page = pages.get(name)
        if page is None or page.redirect or name in closure:
            continue
        closure.add(name)
        if not page.too_long:
            queue += _callees(page.body, names)
    return sorted(closure)


def _reachable(used: Iterable[str], entries: Mapping[str, Entry], aliases: Mapping[str, str]) -> set[str]:
    """The used templates, and those that their expansions call."""
    names = sorted({*entries, *aliases})
    reachable: set[str] = set()
    queue = [name for name in used if name in entries]
    while queue:
        name = queue.pop()
        name = aliases.get(name, name)
        if name in entries and name not in reachable:
            reachable.add(name)
            queue += _callees(entries[name].body or "", names)
    return reachable


def _judge_all(
    bodies: Mapping[str, Included], aliases: Mapping[str, str], site: SiteInfo
) -> dict[str, Entry]:
    """What every template shows.

    If a template calls one of unknown text, it is judged again later, because a handwritten rule may show it.
    """
    entries = {name: _of_beginning(name, page) for name, page in bodies.items()}
    pending = [name for name, page in bodies.items() if not page.too_long]
    for _ in range(_MAX_ROUNDS):
        wiki = Wiki(site, WikitextOptions(), TemplateTable(entries, aliases))
        judged = {name: _judge(name, bodies[name].body, wiki) for name in pending}
        unchanged = all(entries[name] == entry for name, entry in judged.items())
        entries.update(judged)
        pending = [name for name in pending if not judged[name].sure]
        if unchanged or not pending:
            break
    return entries


def _of_beginning(name: str, page: Included) -> Entry:
    """Judges a template by its first element, before its expansion or if it is too long."""
    if not page.too_long:
        return Entry(name, "text", True, page.body)
    kind = _kind_of_classes(page.body)
    return Entry(name, kind or "unknown", kind is not None, why="too long")


def _judge(name: str, body: str, wiki: Wiki) -> Entry:
    """What one template shows."""
    texts, missing, bodies, refused = [], set[str](), [body], 0
    for mode in _MODES:
        probe = _Probe()
        probe.open.append(name)
        text = Page(wiki.parse_body(body), wiki, probe, _Marks(mode)).text()
        # The template would show an argument that is missing and has no default if it were given.
        texts.append(_LAYOUT.sub(" ", _BRACED.sub(f"{_OPEN}\\1{_CLOSE}", text)).strip(" "))
        begins_indented = text.lstrip(f"\n{SOFT} ").startswith(INDENT)
        missing |= probe.missing
        bodies += probe.bodies
        refused += probe.refused
    why = ", ".join(sorted(missing)[:3]) or ("calls itself or too much" if refused else "")
    kind, sure = _kind(texts, "\n".join(dict.fromkeys(bodies)), begins_indented)
    shown_arguments = sorted(
        {argument for text in texts for argument in _ARGUMENT.findall(text)} - {_PAGE_NAME}
    )
    if why and not any(text.replace(HOLE, "").strip() for text in texts):
        return Entry(name, "unknown", False, why=why)
    if why and kind in ("text", "value"):
        return Entry(name, kind, False, body, tuple(shown_arguments), why)
    if kind not in ("text", "value"):
        everything = "\n".join(bodies)
        is_block = kind in ("box", "navigation") and (_TABLE.search(everything) or _BLOCK.search(everything))
        return Entry(name, kind, sure, "\n" if is_block else None, (), why)
    return Entry(name, kind, sure, body, tuple(shown_arguments), why)


def _kind(texts: list[str], bodies: str, indented: bool) -> tuple[Kind, bool]:
    """The kind of a template from the results of its expansions and from the expanded wikitext."""
    if not any(texts):
        if _POSITION.search(bodies):
            return "aside", True
        kind = _kind_of_classes(bodies) or ("reference" if _REFERENCE.search(bodies) else "nothing")
        if kind == "nothing" and _CHOICE.search(bodies):
            # The case depends on the value of an argument, which a mark does not match.
            return "value", True
        is_table = kind == "nothing" and _TABLE.search(bodies) is not None
        # A table may be the frame of a quotation.
        return ("box", False) if is_table else (kind, True)
    if _is_aside(texts, bodies):
        return "aside", True
    if _LINKED_ARGUMENT.search(bodies) and not _QUOTATION.search(bodies):
        return "reference", True
    if indented and _points_elsewhere(_ARGUMENT.sub(" ", texts[0])):
        return "navigation", True
    if _is_message(texts, bodies):
        return "maintenance", True
    constant = _ARGUMENT.sub("", texts[0]).replace(HOLE, "")
    shows_argument = any(_ARGUMENT.search(text) for text in texts)
    return ("value" if not shows_argument or any(map(str.isalnum, constant)) else "text"), True


def _is_aside(texts: list[str], bodies: str) -> bool:
    if not any(text.strip(f"{ASIDE} ") for text in texts) or _COORDINATES.search(bodies):
        return True
    return any(ASIDE_CLASSES & set(classes_of(tag)) for tag in _OPENING_TAG.findall(bodies))


def _points_elsewhere(constant: str) -> bool:
    """Whether the fixed text of an indented line looks like a hatnote: "→ Main article:"."""
    words = len(_WORD.findall(constant))
    return words > 1 or (words == 1 and _ARROW.search(constant) is not None)


def _is_message(texts: list[str], bodies: str) -> bool:
    """Whether a template shows a fixed sentence for readers or editors: "This article is a stub"."""
    constant = _ARGUMENT.sub(" ", texts[-1]).replace(HOLE, "")
    words = len(_WORD.findall(constant))
    if not _ARGUMENT.search("".join(texts)) and len(constant) > _MESSAGE_CHARS:
        return True
    frame = _BLOCK.search(bodies) or _TABLE.search(bodies) or _HIDDEN_LINK.search(bodies)
    return words >= _MESSAGE_WORDS and frame is not None and _QUOTATION.search(bodies) is None


def _kind_of_classes(bodies: str) -> Kind | None:
    """The kind of the first element whose class indicates a kind, or None."""
    for tag in _OPENING_TAG.findall(bodies):
        name = hidden_class(tag)
        if name is not None:
            return next((kind for kind, starts in _FLAVOURS if name.startswith(starts)), "box")
    return None
