"""Tabulates by language what cleaning dropped from wiki pages, and which rules decided about templates."""

from collections.abc import Mapping

from schemas.manifest import LanguageCounts

_KNOWLEDGE = ("user", "learned", "built_in", "unknown")
HEADER = [
    "language", "text dropped", "back matter", "formulas", "template calls", "by your rules", "learned",
    "shipped rules", "unknown",
]  # fmt: skip


def cleaning_rows(languages: Mapping[str, LanguageCounts]) -> list[list[object]]:
    """A row of HEADER for each language with wiki pages, in descending order of template calls.

    "text dropped" is the share of the characters that stood in sentences with a hole, "back matter" that of
    sections of references and links, "formulas" that of paragraphs of nothing but formulas. The last
    four are shares of the calls by what decided what they show.
    """
    rows: list[list[object]] = []
    for lang, counts in languages.items():
        text = counts.text_counts
        calls = [text.get(f"calls_{knowledge}", 0) for knowledge in _KNOWLEDGE]
        if "chars" not in text:
            continue
        dropped, back_matter = text.get("chars_dropped", 0), text.get("back_matter_chars", 0)
        formulas = text.get("formula_chars", 0)
        whole = max(1, text["chars"] + dropped + back_matter + formulas)
        shares = [f"{count / max(1, sum(calls)):.1%}" for count in calls]
        left_out = [f"{chars / whole:.2%}" for chars in (dropped, back_matter, formulas)]
        rows.append([lang, *left_out, sum(calls), *shares])
    return sorted(rows, key=lambda row: (-_calls(row), str(row[0])))


def _calls(row: list[object]) -> int:
    calls = row[4]
    return calls if isinstance(calls, int) else 0
