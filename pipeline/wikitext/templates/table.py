"""The table of one wiki's templates, a small table learned from its dump."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.wikitext.markup import ASIDE
from pipeline.wikitext.templates.rule import Shown, TemplateBody

Kind = Literal[
    "text", "value", "aside", "reference", "box", "navigation", "maintenance", "nothing", "unknown"
]
SILENT_KINDS = frozenset(("reference", "box", "navigation", "maintenance", "nothing"))


def fold_name(name: str) -> str:
    """A template's name as MediaWiki compares it: one space for '_' and runs of spaces, a capital first."""
    name = " ".join(name.replace("_", " ").split())
    return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Entry:
    """The learned facts about one template."""

    name: str
    kind: Kind
    """``text`` shows its arguments as running text, ``value`` a number, a date, a name or a sign, and
    ``aside`` a pronunciation. The others show nothing in the text, or need Lua (``unknown``)."""
    sure: bool
    """Whether everything that it shows is known. If not, a handwritten rule takes precedence."""
    body: str | None = None
    """The wikitext that a call expands to. For kinds that show nothing, a line feed if they separate
    paragraphs, else None."""
    arguments: tuple[str, ...] = ()
    """Names and numbers of the arguments that it shows."""
    why: str = ""
    """Why it is unknown or unsure."""
    uses: int = 0
    """Calls in articles, including those through redirects."""

    @property
    def shown(self) -> Shown:
        """How to show a call."""
        if self.kind in SILENT_KINDS:
            return self.body or ""
        if self.kind == "aside":
            return ASIDE
        return None if self.body is None else TemplateBody(self.name, self.body)


@dataclass(frozen=True, eq=False)
class TemplateTable:
    """The templates of a wiki by name, and the redirects to them."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    """By folded name."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Folded name of a redirect -> folded name of the template."""
    back_matter: frozenset[str] = frozenset()
    """Lowercase headings whose sections are lists of links or citations."""
    _lower: dict[str, str] = field(init=False, repr=False)
    _redirects: dict[str, tuple[str, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lower: dict[str, str] = {}
        for name in sorted((*self.entries, *self.aliases), reverse=True):
            lower[name.lower()] = name
        redirects: dict[str, list[str]] = {}
        for alias, target in sorted(self.aliases.items()):
            redirects.setdefault(target, []).append(alias)
        object.__setattr__(self, "_lower", lower)
        object.__setattr__(self, "_redirects", {name: tuple(found) for name, found in redirects.items()})

    def _target(self, name: str) -> str:
        """The folded name of the template that a call of ``name`` reaches."""
        folded = fold_name(name)
        if folded not in self.entries and folded not in self.aliases:
            folded = self._lower.get(folded.lower(), folded)
        return self.aliases.get(folded, folded)

    def find(self, name: str) -> Entry | None:
        """The entry of the template that a call names, or None."""
        return self.entries.get(self._target(name))

    def names_of(self, name: str) -> Iterator[str]:
        """All names of the template that a call names: its own, then those of its redirects."""
        target = self._target(name)
        yield target
        yield from self._redirects.get(target, ())


NO_TEMPLATES = TemplateTable()
