"""Counts documents by language and outcome. The counts must balance."""

from collections import Counter
from dataclasses import dataclass, field

from schemas.errors import CorpusError
from schemas.tallies import add_fields


@dataclass
class LanguageFunnel:
    """The counts of one language: pages_seen = kept + the sum of skipped."""

    pages_seen: int = 0
    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> pages skipped."""
    text_counts: Counter[str] = field(default_factory=Counter)
    """Other counts that the report shows: raw_bytes, sentences, sentences_dropped ..."""


@dataclass
class Funnel:
    """The counts of all languages."""

    languages: dict[str, LanguageFunnel] = field(default_factory=dict)

    def of(self, lang: str) -> LanguageFunnel:
        """The counts of one language. The caller may change them."""
        return self.languages.setdefault(lang, LanguageFunnel())

    def keep(self, lang: str) -> None:
        """Counts one page seen and kept."""
        counts = self.of(lang)
        counts.pages_seen += 1
        counts.kept += 1

    def skip(self, lang: str, reason: str) -> None:
        """Counts one page seen and skipped."""
        counts = self.of(lang)
        counts.pages_seen += 1
        counts.skipped[reason] += 1

    def add(self, other: "Funnel") -> None:
        """Adds the counts of another part of the corpus."""
        for lang, counts in other.languages.items():
            add_fields(self.of(lang), counts)

    @property
    def pages_seen(self) -> int:
        """Pages of all languages."""
        return sum(counts.pages_seen for counts in self.languages.values())

    @property
    def kept(self) -> int:
        """Documents of all languages."""
        return sum(counts.kept for counts in self.languages.values())

    @property
    def skipped(self) -> Counter[str]:
        """Skipped pages of all languages by reason."""
        total: Counter[str] = Counter()
        for counts in self.languages.values():
            total.update(counts.skipped)
        return total

    def check(self, origin: str) -> None:
        """Raises CorpusError that names ``origin`` when the counts of a language do not balance."""
        for lang, counts in self.languages.items():
            skipped = counts.skipped.total()
            if counts.pages_seen != counts.kept + skipped:
                raise CorpusError(
                    f"{origin}: language {lang}: {counts.pages_seen} pages seen, "
                    f"but {counts.kept} kept and {skipped} skipped"
                )
