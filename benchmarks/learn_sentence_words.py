"""Makes pipeline/data/sentence_words.tsv: words learned from Wikipedia and books, by language.

    python -m benchmarks.learn_sentence_words FOLDER [--dumps FOLDER ...] --out TABLE.tsv

FOLDER holds text as `benchmarks.texts` reads it. Evaluation sets are left out. ``--dumps`` adds the articles
of dumps. The script reads at most ``--megabytes`` of each language, in the order of the files.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.real_pages import real_pages
from benchmarks.texts import texts
from pipeline.text.languages import WIKI_CODES
from pipeline.text.sentences.data import listed_abbreviations
from pipeline.text.sentences.learn_words import LearnedWords, learn
from pipeline.wikitext.plain_text import plain_text

HEADER = """\
# Words that show where sentences end, by language and kind (see pipeline/text/sentences/data.py).
# Made by benchmarks/learn_sentence_words.py from the text of Wikipedia dumps and public-domain books:
# counts of single words, no text. Tabs separate language, kind and words.
"""
KINDS = ("abbreviations", "before_numbers", "ordinary", "starters")
_ROMAN = re.compile("[ivxlcdm]+")
_PARTS = ("text", "books", "pretrain")


def documents(folder: Path, dumps: list[Path]) -> Iterator[tuple[str, list[str]]]:
    """(language, paragraphs) of all documents except the sets that measure the splitter."""
    for place in dumps:
        for page in real_pages(place):
            yield page.site.lang, list(plain_text(page.wikitext, page.site).paragraphs)
    for lang, text in texts(folder, _PARTS, left_out="ntrex"):
        if lang in WIKI_CODES:
            yield lang, text.split("\n\n") if "\n\n" in text else text.split("\n")


def by_language(documents: Iterator[tuple[str, list[str]]], most_chars: int) -> dict[str, list[str]]:
    """Paragraphs by language, at most ``most_chars`` of each."""
    size: dict[str, int] = defaultdict(int)
    paragraphs: dict[str, list[str]] = defaultdict(list)
    for lang, parts in documents:
        if size[lang] < most_chars:
            paragraphs[lang] += parts
            size[lang] += sum(map(len, parts))
    return paragraphs


def lines(lang: str, words: LearnedWords) -> Iterator[str]:
    """The lines of the table for one language, with only those ordinary words that a list has wrongly."""
    listed = listed_abbreviations(lang)
    for kind in KINDS:
        chosen = [word for word in getattr(words, kind) if not _ROMAN.fullmatch(word)]
        if kind == "ordinary":
            chosen = [word for word in chosen if word in listed]
        if chosen:
            yield f"{lang}\t{kind}\t{' '.join(chosen)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dumps", type=Path, nargs="*", default=[])
    parser.add_argument("--megabytes", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    paragraphs = by_language(documents(arguments.folder, arguments.dumps), arguments.megabytes * 1_000_000)
    with arguments.out.open("w", encoding="utf-8") as table:
        table.write(HEADER)
        for lang in sorted(paragraphs):
            table.writelines(lines(lang, learn(paragraphs[lang])))


if __name__ == "__main__":
    main()
