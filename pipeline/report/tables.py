"""Formats plain-text tables: the plan of a dry run, and the closing balance of a build."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.cleaning import HEADER, cleaning_rows
from pipeline.report.vocabulary_fit import subwords_per_word, unknown_share, unknown_warnings
from pipeline.sources.units import Unit
from schemas.manifest import LanguageCounts, Manifest
from schemas.redaction import public_uri

# One line sums up the languages beyond this many.
_LANGUAGE_ROWS = 40
_NOTES = 10


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns. Numbers are right-aligned and have thousands separators."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]

    def line(values: Sequence[str]) -> str:
        padded = zip(values, widths, right, strict=True)
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in padded).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, cells)])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def plan_table(units: Sequence[Unit]) -> str:
    """The input of a build: files, units and bytes by source and language, then notes about files."""
    parts = [part for unit in units for part in unit.ranges]
    by_file: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for part in parts:
        entry = by_file[part.source, part.lang, public_uri(part.uri)]
        entry[0] += 1
        entry[1] += part.stored_bytes
    rows = [[*name, count, size / 1e6] for name, (count, size) in sorted(by_file.items())]
    total = sum(part.stored_bytes for part in parts) / 1e6
    listing = table(["source", "language", "file", "units", "MB"], rows)
    notes = sorted({f"note: {public_uri(part.uri)}: {note}" for part in parts for note in part.notes})
    if len(notes) > _NOTES:
        notes = [*notes[:_NOTES], f"note: {len(notes) - _NOTES} more files have notes"]
    summary = f"{len(units)} units in {len(by_file)} files, {total:,.1f} MB to read"
    return "\n".join([listing, "", *notes, summary])


def closing_table(manifest: Manifest) -> str:
    """The balance of a build: pages, documents and sequences by language, skips and removals by reason."""
    rows: list[list[Any]] = [
        [
            lang, counts.pages_seen, counts.pages_skipped, counts.removed, counts.documents,
            counts.validation_documents, counts.sequences, counts.tokens,
        ]
        for lang, counts in manifest.languages.items()
    ]  # fmt: skip
    header = ["language", "pages in", "skipped", "removed", "documents", "held out", "sequences", "tokens"]
    total: list[Any] = ["all", *(sum(row[i] for row in rows) for i in range(1, len(header)))]
    rows.sort(key=lambda row: (-row[-1], row[0]))
    if len(rows) > _LANGUAGE_ROWS:
        rest = rows[_LANGUAGE_ROWS:]
        summed = [sum(row[i] for row in rest) for i in range(1, len(header))]
        rows = [*rows[:_LANGUAGE_ROWS], [f"{len(rest)} more", *summed]]
    languages = table(header, [*rows, total])
    reasons = {**manifest.counts.pages.skipped, **manifest.counts.removals}
    by_count = sorted(reasons, key=lambda reason: (-reasons[reason], reason))
    skips = table(["skipped or removed", "pages"], [[reason, reasons[reason]] for reason in by_count])
    tokens = table(["tokens", "number"], list(manifest.counts.tokens.model_dump().items()))
    sections = [languages, skips, tokens, *_cleaning(manifest.languages), _fit(manifest.languages)]
    sections.append(_sets(manifest))
    warnings = [f"warning: {line}" for line in unknown_warnings(manifest.languages)]
    return "\n\n".join([*sections, *(["\n".join(warnings)] if warnings else [])])


def _cleaning(languages: Mapping[str, LanguageCounts]) -> list[str]:
    rows = cleaning_rows(languages)
    return [table(HEADER, rows[:_LANGUAGE_ROWS])] if rows else []


def _fit(languages: Mapping[str, LanguageCounts]) -> str:
    """How the vocabulary fits each language, in descending order of [UNK] shares."""
    rows = [
        [lang, counts.words, f"{subwords_per_word(counts):.2f}", f"{unknown_share(counts):.2%}"]
        for lang, counts in sorted(languages.items(), key=lambda item: (-unknown_share(item[1]), item[0]))
        if counts.subwords
    ]
    more = [f"{len(rows) - _LANGUAGE_ROWS} more"] if len(rows) > _LANGUAGE_ROWS else []
    header = ["language", "words", "subwords per word", "[UNK]"]
    return "\n".join([table(header, rows[:_LANGUAGE_ROWS]), *more])


def _sets(manifest: Manifest) -> str:
    rows = [
        [entry.name, entry.split, entry.pass_number, entry.shards.count, entry.rows, entry.tokens,
         entry.bytes / 1e6]
        for entry in manifest.sets
    ]  # fmt: skip
    return table(["set", "split", "pass", "shards", "sequences", "tokens", "MB"], rows)
