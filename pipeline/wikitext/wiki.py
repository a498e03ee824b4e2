"""The state that all pages of a wiki share: its namespaces, template rules, variants and options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from pipeline.text.languages import variant_order
from pipeline.wikitext import markup
from pipeline.wikitext.matching import ParsedText
from pipeline.wikitext.python_rules import OverlaidRules, load_python_rules
from pipeline.wikitext.site import CATEGORY, FILE, MEDIA, TEMPLATE, SiteInfo
from pipeline.wikitext.templates.rule import ModuleCall, PageName, Shown
from pipeline.wikitext.templates.rules import TemplateRules, built_in_rules, find_function, user_rules
from pipeline.wikitext.templates.table import NO_TEMPLATES, TemplateTable, fold_name
from pipeline.wikitext.wiki_words import PAGE_NAME_WORDS

KEPT_WIKIS = 8
"""Wikis whose tables a process keeps. It cleans one wiki after another. One may have 300,000 templates."""


@dataclass(frozen=True)
class WikitextOptions:
    """What to keep of a page."""

    headings: Literal["keep", "drop"] = "drop"
    """Whether section headings become separate paragraphs or are dropped."""
    lists: Literal["keep", "drop"] = "keep"
    """Whether list items become separate paragraphs or are dropped."""
    math: Literal["inline", "tex", "placeholder"] = "inline"
    """Formulas as TeX source or as ``[formula]``. Paragraphs of only formulas stay only with ``tex``."""
    back_matter: Literal["keep", "drop"] = "drop"
    """Whether sections of references, links and books are kept, or dropped with their headings."""
    drop_holed_sentences: bool = True
    """Drop sentences that contain a template of unknown text. False keeps them with the hole."""
    template_rules: str | None = None
    """Path or URI of a YAML file with more template rules (format: pipeline/data/templates.yaml)."""
    template_functions: str | None = None
    """Template rules in Python, as package.module:NAME (pipeline.wikitext.python_rules)."""


# What decided how to show a call, in order of precedence.
USER, LEARNED, BUILT_IN, UNKNOWN, FUNCTION = "user", "learned", "built_in", "unknown", "function"


class Call(NamedTuple):
    """How to show a call."""

    shown: Shown
    colon: int = 0
    """The position after the colon of a parser function, or 0 for a template."""
    decided_by: str = FUNCTION
    template: str | None = None
    """Folded name of the template that was looked up in the table of the wiki, if any."""


class TemplateFacts(NamedTuple):
    """The facts about a template, as plain values."""

    decided_by: str
    rule: str = ""
    """The name of the built-in rule, if it decides."""
    shown: Shown = None
    """How to show the wiki's own template, if it decides."""


# A file in a namespace with an unknown name.
_MEDIA_FILE = re.compile(r"(?i)\.(?:jpe?g|png|gif|svg|tiff?|og[gav]|webm|webp|pdf|djvu|mid|mp3|wav|xcf)\s*$")
_CALL_MODIFIER = re.compile(r"(?i)\s*(?:subst|safesubst|msg|msgnw|raw)\s*:\s*")
_PAGE_NAMES = frozenset(
    f"{start}PAGENAME{end}"
    for start in ("", "FULL", "BASE", "SUB", "ROOT", "SUBJECT", "ARTICLE")
    for end in ("", "E")
)
_NAMESPACE_WORDS = frozenset(["NAMESPACE", "NAMESPACEE", "SUBJECTSPACE", "ARTICLESPACE"])
# Beginnings of magic words that show a number or a date, with an argument as well.
_VALUE_WORDS = ("NUMBEROF", "NUMBERINGROUP", "PAGESIN", "PAGESIZE", "CURRENT", "LOCAL", "REVISION")
# The main namespace has the number 0 and no name.
_NAMESPACE_NUMBER = "NAMESPACENUMBER"
_MAX_REMEMBERED = 20_000
_MAX_BODIES = 4_000


class Wiki:
    """Names, rules, templates and options, with a cache of lookups."""

    def __init__(
        self, site: SiteInfo, options: WikitextOptions, templates: TemplateTable = NO_TEMPLATES
    ) -> None:
        self.site = site
        self.templates = templates
        self.variants = variant_order(site.lang)
        self.keeps_formulas = options.math != "placeholder"
        self.pattern = markup.token_pattern(bool(self.variants))
        self._user_rules: TemplateRules | OverlaidRules = user_rules(site.lang, options.template_rules)
        if options.template_functions is not None:
            self._user_rules = OverlaidRules(load_python_rules(options.template_functions), self._user_rules)
        self._built_in = built_in_rules(site.lang)
        self._calls: dict[str, Call] = {}
        self._bodies: dict[str, ParsedText] = {}
        self._hidden: dict[str, bool] = {}

    def parse(self, wikitext: str) -> ParsedText:
        """The tokens of a page. May clear the cache of tokens before the page, never within it."""
        if markup.forget_if_full():
            self._bodies.clear()
        return self._parsed(wikitext)

    def parse_body(self, wikitext: str) -> ParsedText:
        """The tokens of a template's text, cached."""
        parsed = self._bodies.get(wikitext)
        if parsed is None or parsed.generation != markup.generation():
            parsed = self._parsed(wikitext)
            if len(self._bodies) >= _MAX_BODIES:
                self._bodies.clear()
            self._bodies[wikitext] = parsed
        return parsed

    def _parsed(self, wikitext: str) -> ParsedText:
        return ParsedText("\n" + wikitext, self.pattern, self.is_hidden_link)

    def is_hidden_link(self, text: str) -> bool:
        """Whether a link that begins with ``text`` shows nothing."""
        prefix, colon, rest = text.partition(":")
        return bool(colon) and self.hides_link(prefix, rest.partition("|")[0])

    def hides_link(self, prefix: str, target: str) -> bool:
        """Whether ``[[prefix:...]]`` shows nothing, as for files, categories and other languages."""
        hidden = self._hidden.get(prefix)
        if hidden is None:
            namespace = self.site.namespace_of_prefix(prefix)
            hidden = namespace in (FILE, CATEGORY) or (
                namespace is None and self.site.is_interlanguage(prefix)
            )
            if len(self._hidden) < _MAX_REMEMBERED:
                self._hidden[prefix] = hidden
        return hidden or (
            _MEDIA_FILE.search(target) is not None and self.site.namespace_of_prefix(prefix) != MEDIA
        )

    def call(self, texts: Sequence[str], tokens: Sequence[str], opening: int) -> Call:
        """How to show the call that begins at token ``opening``."""
        raw = texts[opening + 1].partition("|")[0]
        if not raw.strip() and opening + 1 < len(tokens) and tokens[opening + 1][0] == "\n":
            # In "{{", a line feed, "#if:", the line feed and '#' are one token. Or the name has its own line.
            raw = tokens[opening + 1].strip() + texts[opening + 2].partition("|")[0]
            found = self.call_of(raw)
            return found._replace(shown=None, colon=0) if found.colon else found
        return self.call_of(raw)

    def call_of(self, raw: str) -> Call:
        """How to show a call with ``raw`` before the first bar."""
        call = self._calls.get(raw)
        if call is None:
            call = self._look_up(raw)
            if len(self._calls) < _MAX_REMEMBERED:
                self._calls[raw] = call
        return call

    def _look_up(self, raw: str) -> Call:
        modifier = _CALL_MODIFIER.match(raw)
        skipped = modifier.end() if modifier else 0
        name = " ".join(raw[skipped:].replace("_", " ").split())
        head, colon, rest = name.partition(":")
        if colon:
            place = skipped + raw[skipped:].index(":") + 1
            head, rest = head.strip(), rest.strip()
            if head.lower() == "#invoke":
                rule = self._module_rule(rest)
                return Call(rule, place if rule is not None else 0)
            function = find_function(head.lower(), self.site.lang)
            if function is not None:
                return Call(_fixed(function), place)
            if head in PAGE_NAME_WORDS or head in _PAGE_NAMES:
                return Call(lambda arguments: arguments.get("1"), place)
            if self.site.namespace_of_prefix(head) == TEMPLATE:
                name = rest
            elif head.startswith(_VALUE_WORDS):
                return Call(None, place)
            elif head.isupper():
                # {{DEFAULTSORT:...}} and related functions in the wiki's language.
                return Call("")
        elif (variable := self._variable(name)) is not None:
            return Call(variable)
        return self._template(name)

    def _variable(self, name: str) -> Shown:
        """How to show a magic word without arguments, or None for another name."""
        word = PAGE_NAME_WORDS.get(name, name)
        if word in _PAGE_NAMES:
            return PageName(word)
        if word in _NAMESPACE_WORDS:
            return ""
        return "0" if word == _NAMESPACE_NUMBER else None

    def _template(self, name: str) -> Call:
        """Precedence: the user's rules, certain learned entries, handwritten rules, other learned entries."""
        folded = name.lower()
        rule = self._user_rules.find(folded)
        if rule is not None:
            return Call(_fixed(rule), 0, USER)
        template = fold_name(name)
        facts = self.facts_of(template)
        shown = _fixed(self._built_in.find(facts.rule)) if facts.decided_by == BUILT_IN else facts.shown
        return Call(shown, 0, facts.decided_by, template)

    def facts_of(self, template: str) -> TemplateFacts:
        """The entry in the table of the wiki, or the built-in rule, for a template's folded name."""
        entry = self.templates.find(template)
        if entry is not None and entry.sure:
            return TemplateFacts(LEARNED, shown=entry.shown)
        for alias in (template.lower(), *map(str.lower, self.templates.names_of(template))):
            if self._built_in.find(alias) is not None:
                return TemplateFacts(BUILT_IN, rule=alias)
        if entry is not None and entry.shown is not None:
            return TemplateFacts(LEARNED, shown=entry.shown)
        return TemplateFacts(UNKNOWN)

    def _module_rule(self, name: str) -> ModuleCall | str | None:
        module = f"#invoke:{name.lower()}"
        rule = self._user_rules.find(module) or self._built_in.find(module)
        if rule is None:
            return None
        fixed = getattr(rule, "fixed", rule)
        return fixed if fixed is None or isinstance(fixed, str) else ModuleCall(rule)


def _fixed(rule: Shown) -> Shown:
    """The text of a rule that ignores arguments, so that the call needs no splitting, or the rule itself."""
    return getattr(rule, "fixed", rule)


@lru_cache(maxsize=KEPT_WIKIS)
def wiki_of(site: SiteInfo, options: WikitextOptions, templates: TemplateTable = NO_TEMPLATES) -> Wiki:
    """The shared state of a wiki. Raises ConfigError if the user's rules are missing or invalid."""
    return Wiki(site, options, templates)
