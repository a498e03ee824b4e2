"""What all pages of one wiki share: its namespaces, template rules, variants and the options of the run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pipeline.languages import variant_order
from pipeline.site import CATEGORY, FILE, MEDIA, TEMPLATE, SiteInfo
from pipeline.wikitext import markup
from pipeline.wikitext.template_rule import Rule
from pipeline.wikitext.templates import load_rules


@dataclass(frozen=True)
class WikitextOptions:
    """What of a page is kept."""

    headings: Literal["keep", "drop"] = "drop"
    """Section headings as paragraphs of their own, or left out."""
    lists: Literal["keep", "drop"] = "keep"
    """List items as paragraphs of their own, or left out."""
    math: Literal["tex", "placeholder"] = "tex"
    """Formulas as their TeX source, or as ``[formula]``."""
    drop_holed_sentences: bool = True
    """Drop sentences out of which a template of unknown text was cut; False leaves them with the hole."""
    template_rules: str | None = None
    """Path or URI of a YAML file with more template rules (format: pipeline/data/templates.yaml)."""


# A file whose namespace has a name that we do not know.
_MEDIA_FILE = re.compile(r"(?i)\.(?:jpe?g|png|gif|svg|tiff?|og[gav]|webm|webp|pdf|djvu|mid|mp3|wav|xcf)\s*$")
_CALL_MODIFIER = re.compile(r"(?i)\s*(?:subst|safesubst|msg|msgnw|raw)\s*:\s*")
_MAX_REMEMBERED = 20_000


class Wiki:
    """Names, rules and options, with what has been looked up so far."""

    def __init__(self, site: SiteInfo, options: WikitextOptions) -> None:
        self.site = site
        self.variants = variant_order(site.lang)
        self.pattern = markup.token_pattern(bool(self.variants))
        self.keeps_formulas = options.math == "tex"
        self._rules = load_rules(site.lang, options.template_rules)
        self._calls: dict[str, tuple[Rule | str | None, int]] = {}
        self._hidden: dict[str, bool] = {}

    def hides_link(self, prefix: str, target: str) -> bool:
        """Whether ``[[prefix:...]]`` shows nothing in the text: files, categories, other languages."""
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

    def rule_of_call(
        self, texts: Sequence[str], tokens: Sequence[str], opening: int
    ) -> tuple[Rule | str | None, int]:
        """How the call that token ``opening`` begins is shown: a rule, a fixed text, or None for a hole.

        The second value is the place after the colon of a parser function, 0 for a template.
        """
        raw = texts[opening + 1].partition("|")[0]
        if not raw.strip() and opening + 1 < len(tokens) and tokens[opening + 1][0] == "\n":
            # "{{", a line feed, "#if:": the line feed and '#' are one token; or the name on its own line.
            raw = tokens[opening + 1].strip() + texts[opening + 2].partition("|")[0]
            rule, colon = self._look_up(raw)
            return (rule, 0) if not colon else (None, 0)
        known = self._calls.get(raw)
        if known is None:
            known = self._look_up(raw)
            if len(self._calls) < _MAX_REMEMBERED:
                self._calls[raw] = known
        return known

    def _look_up(self, raw: str) -> tuple[Rule | str | None, int]:
        modifier = _CALL_MODIFIER.match(raw)
        skipped = modifier.end() if modifier else 0
        name = " ".join(raw[skipped:].replace("_", " ").split()).lower()
        head, colon, rest = name.partition(":")
        if colon:
            function = self._rules.find_function(head.strip())
            if function is not None:
                return self._fixed(function), skipped + raw[skipped:].index(":") + 1
            if self.site.namespace_of_prefix(head) == TEMPLATE:
                name = rest.strip()
            elif raw[skipped:].partition(":")[0].strip().isupper():
                # {{DEFAULTSORT:...}} and its kin in the wiki's own language.
                return "", 0
        return self._fixed(self._rules.find(name)), 0

    @staticmethod
    def _fixed(rule: Rule) -> Rule | str | None:
        """Rules that look at no argument are told apart, so that none is split."""
        return getattr(rule, "fixed", rule)


@lru_cache(maxsize=512)
def wiki_of(site: SiteInfo, options: WikitextOptions) -> Wiki:
    """The shared state of a wiki. Raises ConfigError when the user's rules are missing or wrong."""
    return Wiki(site, options)
