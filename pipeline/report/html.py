"""Writes the build report, one HTML page without external assets.

Like everything that a build publishes, the page is a function of input and config. Only the copy in the work
folder shows times.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from pipeline.engine.progress import Progress
from pipeline.report.charts import Bar, bars
from pipeline.report.cleaning import HEADER, cleaning_rows
from pipeline.report.instance_sections import Counts, instance_sections, random_pairs
from pipeline.report.vocabulary_fit import subwords_per_word, unknown_share, unknown_warnings
from schemas.manifest import LanguageCounts, Manifest
from schemas.skip_reasons import NEAR_DUPLICATE

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
Languages = Sequence[tuple[str, LanguageCounts]]
# A row of the table of languages: heading and field of the manifest.
_COLUMNS = {
    "pages": "pages_seen", "skipped": "pages_skipped", "removed": "removed",
    "documents": "documents", "held out": "validation_documents", "sequences": "sequences",
    "tokens": "tokens",
}  # fmt: skip


def html_report(
    manifest: Manifest, counts: Counts, times: Sequence[Progress] = (), reused: Sequence[str] = ()
) -> str:
    """The page. ``counts`` are those of every set by language.

    ``times`` adds the duration of each stage, and ``reused`` adds lines about reuse of an earlier build.
    """
    languages = sorted(manifest.languages.items(), key=lambda item: (-item[1].tokens, item[0]))
    sections = [
        ("From pages to documents", _funnel(manifest, languages)),
        ("Skipped and removed pages", _reasons(manifest, languages)),
        *_cleaning(manifest.languages),
        ("Sampling of languages", _sampling(languages)),
        ("How the vocabulary fits", _fit(manifest.languages)),
        *instance_sections(manifest, counts),
        ("Sets", _set_table(manifest)),
        ("Languages", _language_table(languages, counts)),
        *([("Time by stage", _times(times) + "".join(map(_note, reused)))] if times else []),
        ("Config", f"<pre>{escape(_pretty(manifest.config))}</pre>"),
    ]
    warnings = "".join(
        f"<p class=warning><b>Warning:</b> {escape(line)}</p>"
        for line in unknown_warnings(manifest.languages)
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


def _head(manifest: Manifest) -> str:
    sequences = sum(entry.rows for entry in manifest.sets)
    tokens = sum(entry.tokens for entry in manifest.sets)
    return (
        f"<p>{manifest.counts.documents:,} documents in {len(manifest.languages)} languages became "
        f"{sequences:,} sequences of {tokens:,} tokens.</p>"
        f"<p class=note>bertmill {escape(manifest.code_version)}, config "
        f"<code>{manifest.config_hash[:12]}</code>, vocabulary "
        f"<code>{manifest.vocabulary.sha256[:12]}</code> of {manifest.vocabulary.size:,} subwords</p>"
    )


def _funnel(manifest: Manifest, languages: Languages) -> str:
    counts = manifest.counts
    totals = [
        Bar("pages in the sources", (counts.pages.pages_seen,)),
        Bar("kept by extraction", (counts.pages.kept,)),
        Bar("after deduplication", (counts.documents,)),
        Bar("for training", (sum(of_lang.train_documents for _, of_lang in languages),)),
        Bar("held out", (sum(of_lang.validation_documents for _, of_lang in languages),)),
    ]
    by_pages = sorted(languages, key=lambda item: (-item[1].pages_seen, item[0]))
    parts = [
        Bar(lang, (of_lang.documents, of_lang.removed, of_lang.pages_skipped)) for lang, of_lang in by_pages
    ]
    series = ("documents", "removed documents", "skipped pages")
    return (
        bars(totals, "pages")
        + "<h3>By language</h3>"
        + bars(parts, "pages in the sources, by outcome", series)
    )


def _reasons(manifest: Manifest, languages: Languages) -> str:
    def chart(reasons: Mapping[str, int]) -> str:
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        return bars([Bar(name, (count,)) for name, count in ordered if count], "pages")

    removals = manifest.counts.removals
    reasons = [reason for reason, count in sorted(removals.items()) if count]
    shares = [
        Bar(lang, tuple(counts.removals.get(reason, 0) / kept for reason in reasons))
        for lang, counts in languages
        if counts.removed and (kept := counts.documents + counts.removed)
    ]
    shares.sort(key=lambda bar: (-sum(bar.values), bar.name))
    by_language = bars(shares, "share of the extracted pages", reasons, shares=True)
    return (
        f"<h3>Skipped by extraction</h3>{chart(manifest.counts.pages.skipped)}"
        f"<h3>Removed by deduplication</h3>{chart(removals)}"
        + (f"<h3>Removed by language</h3>{by_language}" if shares else "")
    )


def _cleaning(languages: Mapping[str, LanguageCounts]) -> list[tuple[str, str]]:
    rows = cleaning_rows(languages)
    if not rows:
        return []
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    body = "".join("<tr>" + "".join(f"<td>{_number(value)}</td>" for value in row) + "</tr>" for row in rows)
    return [("Templates and back matter", f"<div class=wide><table><tr>{head}</tr>{body}</table></div>")]


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _text_shares(languages: Languages) -> dict[str, tuple[float, float]]:
    """Language -> its share of the training text before and after documents are repeated."""
    before = {lang: float(counts.train_bytes) for lang, counts in languages}
    after = {lang: before[lang] * counts.copies for lang, counts in languages}
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
        + bars(rows, "share of the training text", ("unchanged", "smoothed"), shares=True, stacked=False)
        + note
    )


def _fit(languages: Mapping[str, LanguageCounts]) -> str:
    with_text = [(lang, counts) for lang, counts in languages.items() if counts.subwords]
    unknown = sorted(
        (item for item in with_text if item[1].unknown),
        key=lambda item: (-unknown_share(item[1]), item[0]),
    )
    lengths = sorted(with_text, key=lambda item: (-subwords_per_word(item[1]), item[0]))
    return (
        "<h3>[UNK] among the subwords</h3>"
        + f"<p class=note>{len(with_text) - len(unknown)} of {len(with_text)} languages have none.</p>"
        + bars([Bar(lang, (unknown_share(counts),)) for lang, counts in unknown], "share", shares=True)
        + "<h3>Subwords per word</h3>"
        + bars(
            [Bar(lang, (subwords_per_word(counts),)) for lang, counts in lengths],
            "subwords per word",
            stacked=False,
        )
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table. Integers get thousands separators."""
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
        "subwords per word", "[UNK]", "random pairs",
    ]  # fmt: skip
    shares, random = _text_shares(languages), random_pairs(counts)
    rows = []
    for lang, of_lang in languages:
        amounts = [getattr(of_lang, field) for field in _COLUMNS.values()]
        before, after = shares[lang]
        fit = (
            [f"{subwords_per_word(of_lang):.2f}", f"{unknown_share(of_lang):.3%}"]
            if of_lang.subwords
            else ["-", "-"]
        )
        pairs = f"{random[lang]:.1%}" if lang in random else "-"
        rows.append(
            [
                lang,
                *amounts,
                _near_share(of_lang),
                f"{of_lang.copies:.2f}",
                f"{before:.2%}",
                f"{after:.2%}",
                *fit,
                pairs,
            ]
        )
    return table(header, rows)


def _near_share(counts: LanguageCounts) -> str:
    """Near duplicates among the documents that extraction kept."""
    kept = counts.documents + counts.removed
    return f"{counts.removals.get(NEAR_DUPLICATE, 0) / kept:.1%}" if kept else "-"


def _set_table(manifest: Manifest) -> str:
    header = ["set", "split", "pass", "shards", "sequences", "tokens", "bytes", "bytes per token"]
    rows = []
    for entry in manifest.sets:
        share = f"{entry.bytes / entry.tokens:.2f}" if entry.tokens else "-"
        fixed = [entry.name, entry.split, entry.pass_number, entry.shards.count]
        rows.append([*fixed, entry.rows, entry.tokens, entry.bytes, share])
    return table(header, rows)


def _note(line: str) -> str:
    return f"<p class=note>{escape(line)}</p>"


def _times(times: Sequence[Progress]) -> str:
    """Seconds and rates of the stages of this run. An interrupted stage counts with all its attempts."""
    by_stage: dict[str, list[Progress]] = {}
    for progress in times:
        by_stage.setdefault(progress.stage, []).append(progress)
    seconds = {stage: sum(progress.seconds for progress in attempts) for stage, attempts in by_stage.items()}
    rows = []
    for stage, attempts in by_stage.items():
        done = sum(progress.done for progress in attempts)
        amount = sum(progress.amount for progress in attempts)
        last = attempts[-1]
        rate = amount / last.amount_scale / seconds[stage] if seconds[stage] else 0.0
        shown = f"{rate:,.2f} {last.amount_name}/s" if done else "-"
        rows.append([stage, attempts[0].skipped, done, f"{seconds[stage]:,.1f}", shown])
    return (
        "<p>Wall time over all machines, in the last run of the build.</p>"
        + bars([Bar(stage, (value,)) for stage, value in seconds.items()], "seconds")
        + table(["stage", "units finished earlier", "units done", "seconds", "rate"], rows)
    )


def _pretty(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
