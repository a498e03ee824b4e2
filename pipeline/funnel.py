"""Counts of what came in and what became of it, by language; they must balance."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import CorpusError


@dataclass
class LanguageFunnel:
    """Counts of one language."""

    pages_seen: int = 0
    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Pages left out, by reason."""
    extra: Counter[str] = field(default_factory=Counter)
    """Other counts that the report shows (sentences, bytes, sentences dropped for a hole, ...)."""


@dataclass
class Funnel:
    """pages seen = documents kept + pages skipped by reason, in every language."""

    languages: dict[str, LanguageFunnel] = field(default_factory=dict)

    def of(self, lang: str) -> LanguageFunnel:
        """The counts of one language, which may be changed."""
        return self.languages.setdefault(lang, LanguageFunnel())

    def keep(self, lang: str) -> None:
        """One page seen and kept."""
        counts = self.of(lang)
        counts.pages_seen += 1
        counts.kept += 1

    def skip(self, lang: str, reason: str) -> None:
        """One page seen and left out."""
        counts = self.of(lang)
        counts.pages_seen += 1
        counts.skipped[reason] += 1

    def add(self, other: "Funnel") -> None:
        """Adds the counts of another part of the corpus."""
        for lang, counts in other.languages.items():
            mine = self.of(lang)
            mine.pages_seen += counts.pages_seen
            mine.kept += counts.kept
            mine.skipped.update(counts.skipped)
            mine.extra.update(counts.extra)

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
        """Skips of all languages by reason."""
        total: Counter[str] = Counter()
        for counts in self.languages.values():
            total.update(counts.skipped)
        return total

    def check(self, origin: str) -> None:
        """Raises CorpusError that names ``origin`` when a language's counts do not balance."""
        for lang, counts in self.languages.items():
            skipped = sum(counts.skipped.values())
            if counts.pages_seen != counts.kept + skipped:
                raise CorpusError(
                    f"{origin}: language {lang}: {counts.pages_seen} pages seen, "
                    f"but {counts.kept} kept and {skipped} skipped"
                )

    def to_record(self) -> dict[str, Any]:
        """A dictionary that JSON can hold, with sorted keys."""
        return {
            lang: {
                "pages_seen": counts.pages_seen,
                "kept": counts.kept,
                "skipped": dict(sorted(counts.skipped.items())),
                "extra": dict(sorted(counts.extra.items())),
            }
            for lang, counts in sorted(self.languages.items())
        }

    @staticmethod
    def from_record(record: dict[str, Any]) -> "Funnel":
        """The funnel that ``to_record`` gave."""
        return Funnel(
            {
                lang: LanguageFunnel(
                    counts["pages_seen"], counts["kept"], Counter(counts["skipped"]), Counter(counts["extra"])
                )
                for lang, counts in record.items()
            }
        )
