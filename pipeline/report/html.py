"""The build report: one HTML page without external assets.

The published page is a function of input and config, as all that is published; times go into a second copy
of it in the work folder.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from pipeline.progress import Progress
from pipeline.report.charts import Bar, bars
from pipeline.report.instance_sections import Counts, instance_sections, random_pairs
from pipeline.report.vocabulary_fit import pieces_per_word, unknown_share, unknown_warnings

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1.2em;color:#222;
background:#fff}h2{margin-top:2.2em;border-bottom:1px solid #ddd}h3{margin:1.6em 0 .3em;font-size:1em}
table{border-collapse:collapse;margin:1em 0;font-size:12.5px}
th,td{padding:.2em .55em;border-bottom:1px solid #ddd}
td{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td:first-child,th:first-child{text-align:left}
th{text-align:right;vertical-align:bottom}.wide{overflow-x:auto}
svg{max-width:100%;height:auto;display:block;margin:.6em 0}.pair{display:flex;flex-wrap:wrap;gap:0 20px}
.label{font-size:12.5px;fill:#222}.small{font-size:11px;fill:#444}.unit{font-size:12px;fill:#444}
.grid{stroke:#e4e4e4}.note{color:#555;margin:.3em 0}.warning{background:#fff3d6;padding:.3em .8em}
nav a{margin-right:1em;white-space:nowrap}pre{overflow-x:auto;background:#f6f6f6;padding:1em;font-size:13px}
"""
Languages = Sequence[tuple[str, dict[str, Any]]]
# A row of the table of languages: heading and field of the manifest.
_COLUMNS = {
    "pages": "pages_seen", "skipped": "pages_skipped", "duplicates": "duplicates",
    "documents": "documents", "held out": "validation_documents", "instances": "instances",
    "tokens": "tokens",
}  # fmt: skip


def html_report(manifest: Mapping[str, Any], counts: Counts, times: Sequence[Progress] = ()) -> str:
    """The page: ``counts`` are those of every set by language; with ``times``, how long each stage took."""
    languages = sorted(manifest["languages"].items(), key=lambda item: (-item[1]["tokens"], item[0]))
    sections = [
        ("From pages to documents", _funnel(manifest, languages)),
        ("Pages left out", _reasons(manifest, languages)),
        ("Sampling of languages", _sampling(languages)),
        ("How the vocabulary fits", _fit(manifest["languages"])),
        *instance_sections(manifest, counts),
        ("Sets", _set_table(manifest)),
        ("Languages", _language_table(languages, counts)),
        *([("Time by stage", _times(times))] if times else []),
        ("Config", f"<pre>{escape(_pretty(manifest['config']))}</pre>"),
    ]
    warnings = "".join(
        f"<p class=warning><b>Warning:</b> {escape(line)}</p>"
        for line in unknown_warnings(manifest["languages"])
    )
    links = "".join(f"<a href='#s{number}'>{escape(name)}</a> " for number, (name, _) in enumerate(sections))
    body = "".join(
        f"<h2 id=s{number}>{escape(name)}</h2>{text}" for number, (name, text) in enumerate(sections)
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>Corpus report</title><style>{_STYLE}</style>"
        f"<h1>Corpus report</h1>{_head(manifest)}<nav>{links}</nav>{warnings}{body}</html>\n"
    )


def _head(manifest: Mapping[str, Any]) -> str:
    rows = sum(entry["rows"] for entry in manifest["sets"])
    tokens = sum(entry["tokens"] for entry in manifest["sets"])
    vocabulary = manifest["vocabulary"]
    return (
        f"<p>{manifest['counts']['documents']:,} documents in {len(manifest['languages'])} languages became "
        f"{rows:,} instances of {tokens:,} tokens.</p>"
        f"<p class=note>bertmill {escape(manifest['code_version'])}, config "
        f"<code>{manifest['config_hash'][:12]}</code>, vocabulary <code>{vocabulary['sha256'][:12]}</code> "
        f"of {vocabulary['size']:,} pieces</p>"
    )


def _funnel(manifest: Mapping[str, Any], languages: Languages) -> str:
    counts = manifest["counts"]
    whole = [
        Bar("pages in the sources", (counts["pages"]["pages_seen"],)),
        Bar("kept by extraction", (counts["pages"]["kept"],)),
        Bar("after removal of duplicates", (counts["documents"],)),
        Bar("for training", (sum(entry["train_documents"] for _, entry in languages),)),
        Bar("held out", (sum(entry["validation_documents"] for _, entry in languages),)),
    ]
    by_pages = sorted(languages, key=lambda item: (-item[1]["pages_seen"], item[0]))
    parts = [
        Bar(lang, (entry["documents"], entry["duplicates"], entry["pages_skipped"]))
        for lang, entry in by_pages
    ]
    series = ("documents", "duplicates", "skipped pages")
    return (
        bars(whole, "pages")
        + "<h3>By language</h3>"
        + bars(parts, "pages in the sources, by what became of them", series)
    )


def _reasons(manifest: Mapping[str, Any], languages: Languages) -> str:
    counts = manifest["counts"]

    def chart(reasons: Mapping[str, int]) -> str:
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        return bars([Bar(name, (count,)) for name, count in ordered if count], "pages")

    reasons = [reason for reason, count in sorted(counts["duplicates"].items()) if count]
    shares = [
        Bar(lang, tuple(entry["dropped"].get(reason, 0) / kept for reason in reasons))
        for lang, entry in languages
        if entry["duplicates"] and (kept := entry["documents"] + entry["duplicates"])
    ]
    shares.sort(key=lambda bar: (-sum(bar.values), bar.name))
    by_language = bars(shares, "share of the extracted pages", reasons, shares=True)
    return (
        f"<h3>Skipped by extraction</h3>{chart(counts['pages']['skipped'])}"
        f"<h3>Duplicates</h3>{chart(counts['duplicates'])}"
        + (f"<h3>Duplicates by language</h3>{by_language}" if shares else "")
    )


def _text_shares(languages: Languages) -> dict[str, tuple[float, float]]:
    """Shares of the training text before and after whole documents are repeated."""
    before = {lang: float(entry["train_bytes"]) for lang, entry in languages}
    after = {lang: before[lang] * entry["copies"] for lang, entry in languages}
    sums = sum(before.values()) or 1.0, sum(after.values()) or 1.0
    return {lang: (before[lang] / sums[0], after[lang] / sums[1]) for lang, _ in languages}


def _sampling(languages: Languages) -> str:
    shares = _text_shares(languages)
    by_share = sorted(shares.items(), key=lambda item: (-item[1][0], item[0]))
    rows = [Bar(lang, both) for lang, both in by_share if both[0]]
    none = sorted(lang for lang, both in shares.items() if not both[0])
    note = f"<p class=note>Without a training document: {escape(', '.join(none))}.</p>" if none else ""
    text = "<p>Shares of the bytes of training text, before and after documents are repeated.</p>"
    return (
        text
        + bars(rows, "share of the training text", ("as it is", "smoothed"), shares=True, stacked=False)
        + note
    )


def _fit(languages: Mapping[str, Mapping[str, Any]]) -> str:
    with_text = [(lang, entry) for lang, entry in languages.items() if entry["pieces"]]
    unknown = sorted(
        (item for item in with_text if item[1]["unknown"]),
        key=lambda item: (-unknown_share(item[1]), item[0]),
    )
    pieces = sorted(with_text, key=lambda item: (-pieces_per_word(item[1]), item[0]))
    return (
        "<h3>[UNK] among the pieces</h3>"
        + f"<p class=note>{len(with_text) - len(unknown)} of {len(with_text)} languages have none.</p>"
        + bars([Bar(lang, (unknown_share(entry),)) for lang, entry in unknown], "share", shares=True)
        + "<h3>Pieces per word</h3>"
        + bars(
            [Bar(lang, (pieces_per_word(entry),)) for lang, entry in pieces], "pieces per word", stacked=False
        )
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table; integers get thousands separators."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(f'{v:,}' if isinstance(v, int) else str(v))}</td>" for v in row)
        + "</tr>"
        for row in rows
    )
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _language_table(languages: Languages, counts: Counts) -> str:
    header = [
        "language", *_COLUMNS, "near duplicates", "copies", "share of text", "smoothed",
        "pieces per word", "[UNK]", "random pairs",
    ]  # fmt: skip
    shares, random = _text_shares(languages), random_pairs(counts)
    rows = []
    for lang, entry in languages:
        amounts = [entry[field] for field in _COLUMNS.values()]
        before, after = shares[lang]
        fit = (
            [f"{pieces_per_word(entry):.2f}", f"{unknown_share(entry):.3%}"]
            if entry["pieces"]
            else ["-", "-"]
        )
        pairs = f"{random[lang]:.1%}" if lang in random else "-"
        rows.append(
            [
                lang,
                *amounts,
                _near_share(entry),
                f"{entry['copies']:.2f}",
                f"{before:.2%}",
                f"{after:.2%}",
                *fit,
                pairs,
            ]
        )
    return table(header, rows)


def _near_share(entry: Mapping[str, Any]) -> str:
    """Near duplicates among the documents that extraction kept."""
    kept = entry["documents"] + entry["duplicates"]
    return f"{entry['dropped'].get('near-duplicate', 0) / kept:.1%}" if kept else "-"


def _set_table(manifest: Mapping[str, Any]) -> str:
    header = ["set", "split", "pass", "shards", "instances", "tokens", "bytes", "bytes per token"]
    rows = []
    for entry in manifest["sets"]:
        size = sum(shard["bytes"] for shard in entry["shards"])
        share = f"{size / entry['tokens']:.2f}" if entry["tokens"] else "-"
        fixed = [entry["name"], entry["split"], entry["pass"], len(entry["shards"])]
        rows.append([*fixed, entry["rows"], entry["tokens"], size, share])
    return table(header, rows)


def _times(times: Sequence[Progress]) -> str:
    """Seconds and rates of the stages of this run; a stage that was broken off counts with all attempts."""
    by_stage: dict[str, list[Progress]] = {}
    for progress in times:
        by_stage.setdefault(progress.stage, []).append(progress)
    seconds = {stage: sum(one.seconds for one in found) for stage, found in by_stage.items()}
    rows = []
    for stage, found in by_stage.items():
        done, amount = sum(one.done for one in found), sum(one.amount for one in found)
        last = found[-1]
        rate = amount / last.amount_scale / seconds[stage] if seconds[stage] else 0.0
        shown = f"{rate:,.2f} {last.amount_name}/s" if done else "-"
        rows.append([stage, found[0].skipped, done, f"{seconds[stage]:,.1f}", shown])
    return (
        "<p>By the clock, over all machines, of the last start of the build.</p>"
        + bars([Bar(stage, (value,)) for stage, value in seconds.items()], "seconds")
        + table(["stage", "units done before", "units done", "seconds", "rate"], rows)
    )


def _pretty(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
