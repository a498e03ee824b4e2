"""Plain-text tables: the plan of a dry run, and what came in, was kept, and was skipped and why."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pipeline.report.vocabulary_fit import pieces_per_word, unknown_share, unknown_warnings
from pipeline.units import Unit

# Languages beyond this many are summed up in one line.
_LANGUAGE_ROWS = 40
_NOTES = 10


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned, numbers to the right with thousands separators."""
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
    """What would be read: files, units and bytes by source and language; then what is odd about files."""
    parts = [part for unit in units for part in unit.ranges]
    by_file: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for part in parts:
        entry = by_file[part.source, part.lang, part.uri]
        entry[0] += 1
        entry[1] += part.stored_bytes
    rows = [[*name, count, size / 1e6] for name, (count, size) in sorted(by_file.items())]
    total = sum(part.stored_bytes for part in parts) / 1e6
    listing = table(["source", "language", "file", "units", "MB"], rows)
    notes = sorted({f"note: {part.uri}: {note}" for part in parts for note in part.notes})
    if len(notes) > _NOTES:
        notes = [*notes[:_NOTES], f"note: and {len(notes) - _NOTES} more files with notes"]
    summary = f"{len(units)} units in {len(by_file)} files, {total:,.1f} MB to read"
    return "\n".join([listing, "", *notes, summary])


def closing_table(manifest: dict[str, Any]) -> str:
    """The balance of the build: pages, documents and tokens by language, then skips by reason."""
    counts = manifest["counts"]
    rows: list[list[Any]] = [
        [
            lang, entry["pages_seen"], entry["pages_skipped"], entry["duplicates"], entry["documents"],
            entry["validation_documents"], entry["instances"], entry["tokens"],
        ]
        for lang, entry in manifest["languages"].items()
    ]  # fmt: skip
    header = ["language", "pages in", "skipped", "duplicates", "documents", "held out", "instances", "tokens"]
    total: list[Any] = ["all", *(sum(row[i] for row in rows) for i in range(1, len(header)))]
    rows.sort(key=lambda row: (-row[-1], row[0]))
    if len(rows) > _LANGUAGE_ROWS:
        rest = rows[_LANGUAGE_ROWS:]
        summed = [sum(row[i] for row in rest) for i in range(1, len(header))]
        rows = [*rows[:_LANGUAGE_ROWS], [f"{len(rest)} more", *summed]]
    languages = table(header, [*rows, total])
    reasons: dict[str, int] = {**counts["pages"]["skipped"], **counts["duplicates"]}
    by_count = sorted(reasons, key=lambda reason: (-reasons[reason], reason))
    skips = table(["skipped or dropped", "pages"], [[reason, reasons[reason]] for reason in by_count])
    tokens = table(["tokens", "number"], list(counts["tokens"].items()))
    sections = [languages, skips, tokens, _fit(manifest["languages"]), _sets(manifest)]
    warnings = [f"warning: {line}" for line in unknown_warnings(manifest["languages"])]
    return "\n\n".join([*sections, *(["\n".join(warnings)] if warnings else [])])


def _fit(languages: dict[str, Any]) -> str:
    """How the vocabulary fits: a line a language, the worst [UNK] shares first."""
    rows = [
        [lang, entry["words"], f"{pieces_per_word(entry):.2f}", f"{unknown_share(entry):.2%}"]
        for lang, entry in sorted(languages.items(), key=lambda item: (-unknown_share(item[1]), item[0]))
        if entry["pieces"]
    ]
    more = [f"and {len(rows) - _LANGUAGE_ROWS} more"] if len(rows) > _LANGUAGE_ROWS else []
    header = ["language", "words", "pieces per word", "[UNK]"]
    return "\n".join([table(header, rows[:_LANGUAGE_ROWS]), *more])


def _sets(manifest: dict[str, Any]) -> str:
    rows = [
        [entry["name"], entry["split"], entry["pass"], len(entry["shards"]), entry["rows"], entry["tokens"],
         sum(shard["bytes"] for shard in entry["shards"]) / 1e6]
        for entry in manifest["sets"]
    ]  # fmt: skip
    return table(["set", "split", "pass", "shards", "instances", "tokens", "MB"], rows)
