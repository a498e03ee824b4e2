"""Measures the speed of cleaning, that of mwparserfromhell in the same run, and the slowest pages.

    python -m benchmarks.extraction.cleaning_speed DUMP.xml.bz2 [--dumps FOLDER] [--out RESULTS.md]

Rates are MB of wikitext (UTF-8) per second of processor time of one core, the best of several rounds.
"markup" is plain_text alone, "extract" everything from the compressed dump to sentences. A table has an entry
for every template that the sample calls: those that shipped rules show as nothing are a reference, and each
call of any other is expanded from a body with a parser function, which is more work than the table of a real
wiki causes. "sentences" and "normalize" get the paragraphs and count their bytes.
"""

import argparse
import bz2
import platform
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import mwparserfromhell
import sentencex

from benchmarks.real_pages import RealPage, pages_of_file, real_pages
from pipeline.text.normalize import normalize_text
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.plain_text import NO_TEMPLATES, TemplateTable, WikitextOptions, plain_text
from pipeline.wikitext.templates.rules import built_in_rules
from pipeline.wikitext.templates.table import Entry

WITH_TABLE = "markup: plain_text with a table"
EXTRACT, EXTRACT_WITH_TABLE = "extract: dump to sentences", "extract: dump to sentences with a table"
_BODY = "{{{1|}}}{{#if:{{{2|}}}|, {{{2}}}}}<noinclude/>"
MARKUP, PEER = "markup: plain_text", "markup: mwparserfromhell parse + strip_code"
SENTENCES = "sentences: split_sentences"


def seconds(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def megabytes(texts: Iterable[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def table_of_all_calls(pages: list[RealPage]) -> TemplateTable:
    """A table with an entry for every template that the pages call."""
    rules = built_in_rules(pages[0].site.lang)
    called = set[str]().union(*(plain_text(page.wikitext, page.site).templates for page in pages))
    entries: dict[str, Entry] = {}
    for name in sorted(called):
        rule = rules.find(name.lower())
        is_silent = getattr(rule, "fixed", None) == ""
        entries[name] = Entry(name, "reference" if is_silent else "text", True, None if is_silent else _BODY)
    return TemplateTable(entries)


def bz2_to_paragraphs(path: Path) -> int:
    return sum(len(plain_text(page.wikitext, page.site).paragraphs) for page in pages_of_file(path))


def dump_to_sentences(path: Path, table: TemplateTable) -> int:
    options, count = WikitextOptions(), 0
    for page in pages_of_file(path):
        for paragraph in plain_text(page.wikitext, page.site, options, table, page.title).paragraphs:
            text = normalize_text(paragraph, page.site.lang)
            count += len(split_sentences(text, page.site.lang))
    return count


def slowest_pages(pages: Iterable[RealPage], count: int) -> list[tuple[float, RealPage]]:
    timed = []
    for page in pages:
        timed.append((seconds(partial(plain_text, page.wikitext, page.site), 2), page))
    return sorted(timed, key=lambda item: -item[0])[:count]


def measure(dump: Path, pages: list[RealPage], rounds: int) -> dict[str, tuple[float, float]]:
    """Step -> megabytes and seconds."""
    lang = pages[0].site.lang
    texts = [text for page in pages for text in plain_text(page.wikitext, page.site).paragraphs]
    wikitext, text = megabytes(page.wikitext for page in pages), megabytes(texts)
    table, options = table_of_all_calls(pages), WikitextOptions()
    steps: dict[str, tuple[float, Callable[[], object], int]] = {
        MARKUP: (wikitext, lambda: [plain_text(page.wikitext, page.site) for page in pages], rounds),
        WITH_TABLE: (
            wikitext,
            lambda: [plain_text(page.wikitext, page.site, options, table, page.title) for page in pages],
            rounds,
        ),
        PEER: (wikitext, lambda: [mwparserfromhell.parse(page.wikitext).strip_code() for page in pages], 1),
        EXTRACT: (wikitext, lambda: dump_to_sentences(dump, NO_TEMPLATES), rounds),
        EXTRACT_WITH_TABLE: (wikitext, lambda: dump_to_sentences(dump, table), rounds),
        "bz2 and XML to paragraphs": (wikitext, lambda: bz2_to_paragraphs(dump), rounds),
        "bz2 alone": (wikitext, lambda: bz2.decompress(dump.read_bytes()), rounds),
        SENTENCES: (text, lambda: [split_sentences(p, lang) for p in texts], rounds),
        "sentences: sentencex alone": (
            text,
            lambda: [sentencex.segment(lang, p) for p in texts],
            rounds,
        ),
        "normalize: normalize_text": (text, lambda: [normalize_text(p, lang) for p in texts], rounds),
    }
    return {name: (size, seconds(work, times)) for name, (size, work, times) in steps.items()}


def summary(
    dump: Path, pages: list[RealPage], steps: dict[str, tuple[float, float]], rounds: int
) -> list[str]:
    """The rates as Markdown lines."""
    return [
        "# Cleaning speed, one core",
        "",
        f"{dump.name}: {len(pages)} articles, {steps[MARKUP][0]:.2f} MB wikitext, "
        f"{steps[SENTENCES][0]:.2f} MB text. Python {platform.python_version()}, {platform.machine()}; "
        f"processor time, best of {rounds} rounds.",
        "",
        "| step | MB | seconds | MB/s |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {size:.2f} | {took:.3f} | {size / took:.1f} |"
            for name, (size, took) in steps.items()
        ),
        "",
        f"plain_text is {steps[PEER][1] / steps[MARKUP][1]:.1f} times as fast as mwparserfromhell.",
        f"With a table plain_text takes {steps[WITH_TABLE][1] / steps[MARKUP][1]:.2f} times the time, and "
        f"extract {steps[EXTRACT_WITH_TABLE][1] / steps[EXTRACT][1]:.2f} times.",
    ]


def slow_lines(folder: Path) -> list[str]:
    """The ten slowest pages below ``folder`` as Markdown lines."""
    return [
        "",
        f"## The slowest pages of {folder.name}",
        "",
        "| wiki | page | MB | seconds |",
        "|---|---|---:|---:|",
        *(
            f"| {page.site.lang} | {page.title} | {megabytes([page.wikitext]):.3f} | {took:.3f} |"
            for took, page in slowest_pages(real_pages(folder), 10)
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dump", type=Path)
    parser.add_argument("--dumps", type=Path, help="folder of dumps, for the slowest pages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    pages = list(pages_of_file(arguments.dump))
    steps = measure(arguments.dump, pages, arguments.rounds)
    lines = summary(arguments.dump, pages, steps, arguments.rounds)
    if arguments.dumps:
        lines += slow_lines(arguments.dumps)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
