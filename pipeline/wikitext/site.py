"""The names of a wiki's namespaces, from the dump's ``<siteinfo>`` and the English names."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.text.languages import TEMPLATE_NAMESPACES, WIKI_CODES, file_and_category_names
from schemas.errors import InputError

MEDIA, SPECIAL, MAIN, USER, PROJECT, FILE, TEMPLATE, HELP, CATEGORY = -2, -1, 0, 2, 4, 6, 10, 12, 14

_ENGLISH = {
    MEDIA: ("Media",),
    SPECIAL: ("Special",),
    1: ("Talk",),
    USER: ("User",),
    3: ("User talk",),
    PROJECT: ("Project", "Wikipedia"),
    5: ("Project talk", "Wikipedia talk"),
    FILE: ("File", "Image"),
    7: ("File talk", "Image talk"),
    8: ("MediaWiki",),
    9: ("MediaWiki talk",),
    TEMPLATE: ("Template",),
    11: ("Template talk",),
    HELP: ("Help",),
    13: ("Help talk",),
    CATEGORY: ("Category",),
    15: ("Category talk",),
    828: ("Module",),
    829: ("Module talk",),
}


def fold_prefix(name: str) -> str:
    """A namespace or interwiki prefix for comparison: lowercase, one space for '_' and runs of spaces."""
    return " ".join(name.replace("_", " ").split()).lower()


@dataclass(frozen=True)
class SiteInfo:
    """A wiki: its language code, database name and namespaces (number -> names, the local one first)."""

    lang: str
    dbname: str = ""
    namespaces: Mapping[int, tuple[str, ...]] = field(default_factory=dict, hash=False)
    _prefixes: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        prefixes: dict[str, int] = {}
        files, categories = file_and_category_names(self.lang)
        templates = (TEMPLATE_NAMESPACES[self.lang],) if self.lang in TEMPLATE_NAMESPACES else ()
        local = {FILE: files, CATEGORY: categories, TEMPLATE: templates}
        # Later names win, so that the names in the dump take precedence.
        for source in (_ENGLISH, local, self.namespaces):
            for number, names in source.items():
                prefixes.update({fold_prefix(name): number for name in names if name})
        object.__setattr__(self, "_prefixes", prefixes)

    @classmethod
    def from_names(cls, lang: str, namespaces: Mapping[str, object], dbname: str = "") -> "SiteInfo":
        """From numbers as text -> name or list of names, as JSON has them. Raises InputError."""
        read: dict[int, tuple[str, ...]] = {}
        for number, names in namespaces.items():
            listed = [names] if isinstance(names, str) else names
            if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
                raise InputError(f"namespaces: {number}: expected a list of names, got {names!r}")
            try:
                read[int(number)] = tuple(listed)
            except ValueError:
                raise InputError(f"namespaces: {number!r} is not a number") from None
        return cls(lang, dbname, read)

    def namespace_of_prefix(self, prefix: str) -> int | None:
        """Number of the namespace for ``prefix`` (text before ':'), or None."""
        return self._prefixes.get(fold_prefix(prefix))

    def namespace_of_title(self, title: str) -> int:
        """Number of the namespace of a full page title, or 0 without a namespace prefix."""
        prefix, colon, _ = title.partition(":")
        number = self.namespace_of_prefix(prefix) if colon else None
        return MAIN if number is None else number

    def is_interlanguage(self, prefix: str) -> bool:
        """Whether ``[[prefix:Title]]`` is an interlanguage link, which appears outside the text."""
        code = fold_prefix(prefix)
        return code in WIKI_CODES and code != self.lang and code not in self._prefixes
