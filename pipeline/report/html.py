"""The build report: one HTML page without external assets, made from the manifest alone."""

from collections.abc import Sequence
from html import escape
from typing import Any

from pipeline.report.vocabulary_fit import pieces_per_word, unknown_share, unknown_warnings

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd}
td{text-align:right;font-variant-numeric:tabular-nums}td:first-child,th{text-align:left}
.bar{fill:#4878a8}.label{font-size:12px;fill:#222}h2{margin-top:2em}caption{text-align:left;color:#666}
"""
_BAR_WIDTH, _BAR_HEIGHT = 420, 18
_MOST_BARS = 30


def html_report(manifest: dict[str, Any]) -> str:
    """A page with the funnel, the skip reasons, the languages, the sets and the config."""
    counts = manifest["counts"]
    pages = counts["pages"]
    funnel = [
        ("pages in the sources", pages["pages_seen"]),
        ("kept by extraction", pages["kept"]),
        ("documents after dedup", counts["documents"]),
        ("instances", sum(entry["rows"] for entry in manifest["sets"])),
    ]
    reasons = sorted(
        {**pages["skipped"], **counts["duplicates"]}.items(), key=lambda item: (-item[1], item[0])
    )
    languages = sorted(manifest["languages"].items(), key=lambda item: (-item[1]["tokens"], item[0]))
    sections = [
        _section("From pages to instances", _bars(funnel)),
        _section("Why pages were left out", _bars(reasons) if reasons else "<p>None was left out.</p>"),
        _section("Tokens by language", _bars([(lang, entry["tokens"]) for lang, entry in languages])),
        _section("Languages", _language_table(languages)),
        _section("How the vocabulary fits", _fit(manifest["languages"])),
        _section("Tokens", _rows(["set", *_token_names(counts)], _token_rows(counts))),
        _section("Sets", _set_table(manifest)),
        _section("Config", f"<pre>{escape(_pretty(manifest['config']))}</pre>"),
    ]
    title = "Corpus report"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>bertmill {escape(manifest['code_version'])}, config "
        f"<code>{manifest['config_hash'][:12]}</code>, vocabulary <code>"
        f"{manifest['vocabulary']['sha256'][:12]}</code> of {manifest['vocabulary']['size']:,} pieces</p>"
        f"{''.join(sections)}</html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _bars(items: Sequence[tuple[str, int]]) -> str:
    """Horizontal bars, largest as wide as the plot; a long tail is summed up in the last one."""
    shown = list(items[:_MOST_BARS])
    if len(items) > _MOST_BARS:
        shown.append((f"{len(items) - _MOST_BARS} more", sum(value for _, value in items[_MOST_BARS:])))
    largest = max((value for _, value in shown), default=0) or 1
    parts = []
    for row, (name, value) in enumerate(shown):
        top = row * (_BAR_HEIGHT + 6)
        width = _BAR_WIDTH * value / largest
        parts.append(
            f"<text class=label x=170 y={top + 13} text-anchor=end>{escape(name)}</text>"
            f"<rect class=bar x=180 y={top} width={width:.1f} height={_BAR_HEIGHT}></rect>"
            f"<text class=label x={186 + width:.1f} y={top + 13}>{value:,}</text>"
        )
    height = len(shown) * (_BAR_HEIGHT + 6)
    return f"<svg width=760 height={height} role=img>{''.join(parts)}</svg>"


def _rows(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(f'{v:,}' if isinstance(v, int) else str(v))}</td>" for v in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _language_table(languages: Sequence[tuple[str, dict[str, Any]]]) -> str:
    names = [
        "pages_seen",
        "pages_skipped",
        "duplicates",
        "documents",
        "validation_documents",
        "instances",
        "tokens",
    ]
    header = ["language", *(name.replace("_", " ") for name in names), "near duplicates"]
    rows = [[lang, *(entry[name] for name in names), _near_share(entry)] for lang, entry in languages]
    return _rows(header, rows)


def _near_share(entry: dict[str, Any]) -> str:
    """Near duplicates among the documents that extraction kept."""
    kept = entry["documents"] + entry["duplicates"]
    return f"{entry['dropped'].get('near-duplicate', 0) / kept:.1%}" if kept else "-"


def _fit(languages: dict[str, dict[str, Any]]) -> str:
    warnings = "".join(f"<p><b>Warning:</b> {escape(line)}</p>" for line in unknown_warnings(languages))
    rows = [
        [
            lang,
            entry["words"],
            entry["pieces"],
            f"{pieces_per_word(entry):.2f}",
            f"{unknown_share(entry):.3%}",
        ]
        for lang, entry in sorted(languages.items(), key=lambda item: (-unknown_share(item[1]), item[0]))
        if entry["pieces"]
    ]
    return warnings + _rows(["language", "words", "pieces", "pieces per word", "[UNK]"], rows)


def _token_names(counts: dict[str, Any]) -> list[str]:
    return [name.replace("_", " ") for name in counts["tokens"]]


def _token_rows(counts: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, account in counts["by_set"].items():
        left_over = sum(account["left_over"].values())
        rows.append([name, account["tokens_in"], account["tokens_used"], account["tokens_cut"], left_over])
    return [*rows, ["all", *counts["tokens"].values()]]


def _set_table(manifest: dict[str, Any]) -> str:
    header = ["set", "split", "pass", "shards", "instances", "tokens", "bytes", "bytes per token"]
    rows = []
    for entry in manifest["sets"]:
        size = sum(shard["bytes"] for shard in entry["shards"])
        share = f"{size / entry['tokens']:.2f}" if entry["tokens"] else "-"
        fixed = [
            entry["name"],
            entry["split"],
            entry["pass"],
            len(entry["shards"]),
            entry["rows"],
            entry["tokens"],
        ]
        rows.append([*fixed, size, share])
    return _rows(header, rows)


def _pretty(config: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
