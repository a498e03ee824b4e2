"""Measures leftovers of markup and lost words over all real dumps in a folder.

    python -m benchmarks.extraction.cleaning_quality DUMPS [--published TEXTS.jsonl.xz ...] [--out RESULTS.md]

A leftover is a piece of markup in a sentence, formulas apart. Words are compared as multisets with
mwparserfromhell's strip_code without tables, references, files and categories: "lost" are words
of its text that ours lacks when no sentence is dropped for a hole and headings are kept. With
--published, pages are also compared with published plain text of the same title (fields lang, title, text),
each with the version that shares most words with it.
"""

import argparse
import collections
import contextlib
import json
import lzma
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mwparserfromhell

from benchmarks.real_pages import RealPage, real_pages
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.plain_text import WikitextOptions, plain_text
from schemas.tallies import add_fields

LEFTOVERS = {
    "{{ or }}": re.compile(r"\{\{|\}\}"),
    "[[ or ]]": re.compile(r"\[\[|\]\]"),
    "|": re.compile(r"\|"),
    "<": re.compile(r"<"),
    "==": re.compile(r"=="),
    "thumb": re.compile(r"\bthumb\b"),
    "px|": re.compile(r"\d(?:px|пкс|п)\|"),
    "empty brackets": re.compile(r"[(（\[]\s*[,;:，；：]*\s*[)）\]]"),
    "doubled space": re.compile(r"\s\s"),
    "&amp; and kin": re.compile(r"&(?:amp|lt|gt|nbsp|quot|#\d+);"),
    "''": re.compile(r"''"),
    "file or category": re.compile(r"(?i)\b(?:file|image|category):\S"),
    "space before mark": re.compile(r"\w [,;.](?:\s|$)"),
}
ISSUE = tuple(LEFTOVERS)[:10]
OPTIONS = WikitextOptions(math="placeholder")
_NO_PROSE = {
    "table",
    "ref",
    "references",
    "gallery",
    "timeline",
    "math",
    "imagemap",
    "score",
    "syntaxhighlight",
    "source",
}
WITH_HOLES = WikitextOptions(math="placeholder", drop_holed_sentences=False, headings="keep")


@dataclass
class Tally:
    """Counts of one wiki or of all."""

    pages: int = 0
    wikitext_bytes: int = 0
    text_bytes: int = 0
    sentences: int = 0
    dropped: int = 0
    bad_sentences: int = 0
    bad_pages: int = 0
    peer_words: int = 0
    lost_words: int = 0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: "Tally") -> None:
        """Adds the counts of ``other``."""
        add_fields(self, other)


def words(text: str) -> collections.Counter[str]:
    """Words separated by spaces, or single characters in scripts without spaces."""
    return collections.Counter(
        re.findall(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W_]+", text.lower())
    )


def prose_of(page: RealPage) -> str:
    """The text of strip_code after removing tables, references, galleries, files and categories.

    This is the usual recipe (Hugging Face's wikipedia data set is cleaned in this way).
    """
    code = mwparserfromhell.parse(page.wikitext)
    doomed: list[Any] = [tag for tag in code.ifilter_tags() if str(tag.tag).lower().strip() in _NO_PROSE]
    doomed += [link for link in code.ifilter_wikilinks() if _hidden(page, str(link.title))]
    for node in doomed:
        with contextlib.suppress(ValueError):  # it was removed together with one around it
            code.remove(node)
    kept = (line.strip() for line in code.strip_code().split("\n"))
    return "\n".join(line for line in kept if "|" not in line and not re.fullmatch(r"__\w+__", line))


def _hidden(page: RealPage, title: str) -> bool:
    prefix = title.partition(":")[0]
    return page.site.namespace_of_prefix(prefix) in (6, 14) or page.site.is_interlanguage(prefix)


def measure(page: RealPage, compare: bool) -> tuple[Tally, list[str]]:
    clean = plain_text(page.wikitext, page.site, OPTIONS)
    tally = Tally(pages=1, wikitext_bytes=len(page.wikitext.encode()), dropped=clean.dropped_sentences)
    bad: list[str] = []
    for paragraph in clean.paragraphs:
        tally.text_bytes += len(paragraph.encode())
        for sentence in split_sentences(paragraph, page.site.lang):
            tally.sentences += 1
            found = [name for name, pattern in LEFTOVERS.items() if pattern.search(sentence)]
            tally.kinds.update(found)
            if any(name in ISSUE for name in found):
                bad.append(sentence)
    tally.bad_sentences = len(bad)
    tally.bad_pages = int(bool(bad))
    if compare:
        peer = words(prose_of(page))
        whole = words("\n".join(plain_text(page.wikitext, page.site, WITH_HOLES).paragraphs))
        tally.peer_words = peer.total()
        tally.lost_words = (peer - whole).total()
    return tally, bad


def published_texts(paths: Iterable[Path]) -> dict[tuple[str, str], list[str]]:
    """Plain texts by (language, title)."""
    texts: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                texts[record["lang"], record["title"]].append(record["text"])
    return texts


@dataclass
class Comparison:
    """A comparison with the published text of the same pages."""

    pages: int = 0
    published_words: int = 0
    our_words: int = 0
    only_published: int = 0
    only_ours: int = 0
    published_sentences: int = 0
    published_bad: int = 0

    def add(self, page: RealPage, versions: list[str]) -> None:
        """Counts one page against the published version that is nearest to it."""
        ours = words("\n".join(plain_text(page.wikitext, page.site, WITH_HOLES).paragraphs))
        text = max(
            versions, key=lambda version: (words(version) & ours).total() / max(1, words(version).total())
        )
        theirs = words(text)
        self.pages += 1
        self.published_words += theirs.total()
        self.our_words += ours.total()
        self.only_published += (theirs - ours).total()
        self.only_ours += (ours - theirs).total()
        for line in text.split("\n"):
            for sentence in split_sentences(line, page.site.lang):
                self.published_sentences += 1
                self.published_bad += any(LEFTOVERS[name].search(sentence) for name in ISSUE)

    def lines(self) -> list[str]:
        """The comparison as a table."""
        return [
            "## Beside published plain text of the same pages (other revisions of them)",
            "",
            "| pages | words published | ours | published only | ours only | published with leftovers |",
            "|---:|---:|---:|---:|---:|---:|",
            f"| {self.pages} | {self.published_words} | {self.our_words} "
            f"| {self.only_published / max(1, self.published_words):.2%} "
            f"| {self.only_ours / max(1, self.our_words):.2%} "
            f"| {self.published_bad / max(1, self.published_sentences):.3%} of sentences |",
        ]


def table(rows: Iterable[tuple[str, Tally]]) -> list[str]:
    lines = [
        "| wiki | pages | MB wikitext | sentences | with leftovers | pages with leftovers "
        "| sentences dropped for holes | words of strip_code | lost |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, t in rows:
        lines.append(
            f"| {name} | {t.pages} | {t.wikitext_bytes / 1e6:.2f} | {t.sentences} | {t.bad_sentences} "
            f"({t.bad_sentences / max(1, t.sentences):.3%}) | {t.bad_pages / t.pages:.1%} | {t.dropped} "
            f"| {t.peer_words} | {t.lost_words / max(1, t.peer_words):.2%} |"
        )
    return lines


@dataclass
class Survey:
    """The figures over all pages."""

    published: dict[tuple[str, str], list[str]]
    compare: bool = True
    show_lost: bool = False
    by_wiki: dict[str, Tally] = field(default_factory=lambda: collections.defaultdict(Tally))
    comparison: Comparison = field(default_factory=Comparison)
    examples: list[str] = field(default_factory=list)
    """Sentences with leftovers."""
    worst: list[tuple[float, str, str, int, int]] = field(default_factory=list)
    """(how bad, wiki, title, sentences with leftovers, words lost) of every page."""
    slowest: float = 0.0

    def add(self, page: RealPage) -> None:
        """Measures one page."""
        lang = page.site.lang
        versions = self.published.get((lang, page.title))
        if versions:
            self.comparison.add(page, versions)
        started = time.process_time()
        plain_text(page.wikitext, page.site, OPTIONS)
        self.slowest = max(self.slowest, time.process_time() - started)
        tally, bad = measure(page, self.compare)
        self.by_wiki[lang].add(tally)
        self.examples += [f"{lang} {page.title}: {sentence}" for sentence in bad]
        lost = tally.lost_words / max(20, tally.peer_words)
        if self.show_lost and tally.lost_words:
            print(f"{lost:.3f} {lang} {page.title}: {lost_words(page)}")
        badness = lost + tally.bad_sentences / max(5, tally.sentences)
        self.worst.append((badness, lang, page.title, tally.bad_sentences, tally.lost_words))

    def total(self) -> Tally:
        """All wikis together."""
        total = Tally()
        for tally in self.by_wiki.values():
            total.add(tally)
        return total


def lost_words(page: RealPage) -> list[tuple[str, int]]:
    whole = words("\n".join(plain_text(page.wikitext, page.site, WITH_HOLES).paragraphs))
    return list((words(prose_of(page)) - whole).items())[:50]


def summary(survey: Survey, worst: int) -> list[str]:
    """The result as Markdown lines, the most important six first."""
    total = survey.total()
    lines = [
        "# Cleaning quality over real dumps",
        "",
        f"{len(survey.by_wiki)} wikis, slowest page {survey.slowest:.3f} s. "
        f"Leftovers counted: {', '.join(ISSUE)}.",
        "",
        *table([("all", total), *sorted(survey.by_wiki.items(), key=lambda item: -item[1].pages)]),
        "",
        "| kind of leftover | sentences |",
        "|---|---:|",
        *(f"| `{name.replace('|', chr(92) + '|')}` | {total.kinds[name]} |" for name in LEFTOVERS),
    ]
    if survey.comparison.pages:
        lines += ["", *survey.comparison.lines()]
    lines += [
        "",
        f"## The {worst} worst pages",
        "",
        "| wiki | page | sentences with leftovers | words lost |",
        "|---|---|---:|---:|",
    ]
    for _, wiki, title, bad_count, lost_count in sorted(survey.worst, reverse=True)[:worst]:
        lines.append(f"| {wiki} | {title.replace('|', '')} | {bad_count} | {lost_count} |")
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--published", type=Path, nargs="*", default=[])
    parser.add_argument("--no-compare", action="store_true", help="leave the slow comparison out")
    parser.add_argument("--examples", type=int, default=0, help="print this many sentences with leftovers")
    parser.add_argument("--lost", action="store_true", help="print the lost words of every page")
    parser.add_argument("--worst", type=int, default=50)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    survey = Survey(published_texts(arguments.published), not arguments.no_compare, arguments.lost)
    for page in real_pages(arguments.dumps):
        survey.add(page)
    for line in survey.examples[: arguments.examples]:
        print(line[:300])
    lines = summary(survey, arguments.worst)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[: 6 if arguments.out else None]))
    kinds = survey.total().kinds
    print({name: kinds[name] for name in LEFTOVERS})


if __name__ == "__main__":
    main()
