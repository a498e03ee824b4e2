"""Finds contradictions within a corpus manifest before any shard is opened."""

from collections import Counter
from collections.abc import Iterator

from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import LanguageCounts, Manifest


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Sums that do not add up, duplicate names, and counts that do not balance."""
    objective = manifest.objective
    if manifest.label_convention != LABEL_CONVENTIONS[objective]:
        yield f"label_convention is not that of {objective}"
    labels = Counter(entry.label for entry in manifest.sets)
    yield from (f"duplicate set {label}" for label, count in labels.items() if count > 1)
    prefixes = Counter(entry.shards.prefix for entry in manifest.sets)
    yield from (f"two sets have shards {prefix}..." for prefix, count in prefixes.items() if count > 1)
    for entry in manifest.sets:
        if entry.rows != sum(entry.languages.values()):
            yield f"set {entry.label}: languages do not add up to rows"
    yield from _count_problems(manifest, set(labels))
    yield from _language_problems(manifest)


def _count_problems(manifest: Manifest, labels: set[str]) -> Iterator[str]:
    by_set = manifest.counts.by_set
    yield from (f"set {label} has no counts" for label in sorted(labels - by_set.keys()))
    yield from (f"counts of {label}: there is no such set" for label in sorted(by_set.keys() - labels))
    for label, counts in by_set.items():
        if counts.tokens_in != counts.tokens_used + counts.tokens_cut + counts.tokens_left_over:
            yield f"counts of {label}: tokens_in is not tokens_used + tokens_cut + left_over"


def _language_problems(manifest: Manifest) -> Iterator[str]:
    """Counts of the languages that do not balance, or differ from the sets or the totals."""
    rows: Counter[str] = Counter()
    for entry in manifest.sets:
        rows.update(entry.languages)
    yield from (
        f"language {lang} has rows but no counts" for lang in sorted(rows.keys() - manifest.languages)
    )
    for lang, counts in manifest.languages.items():
        if counts.sequences != rows[lang]:
            yield f"language {lang}: sequences is {counts.sequences}, but the sets have {rows[lang]} rows"
        yield from (f"language {lang}: {problem}" for problem in _account_problems(counts))
    if manifest.counts.documents != sum(counts.documents for counts in manifest.languages.values()):
        yield "counts: documents is not the sum over the languages"


def _account_problems(counts: LanguageCounts) -> Iterator[str]:
    """Sums that do not add up within the counts of one language."""
    if counts.pages_seen != counts.pages_skipped + counts.removed + counts.documents:
        yield "pages_seen is not the sum of pages_skipped, removed and documents"
    if counts.documents != counts.train_documents + counts.validation_documents:
        yield "documents is not the sum of train_documents and validation_documents"
    if counts.pages_skipped != sum(counts.skipped.values()):
        yield "pages_skipped is not the sum of skipped"
    if counts.removed != sum(counts.removals.values()):
        yield "removed is not the sum of removals"
