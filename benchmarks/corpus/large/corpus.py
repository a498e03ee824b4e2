"""Makes dumps of any size from the bundled ones: other words, numbers, titles and ids in the real markup.

    python -m benchmarks.corpus.large.corpus FOLDER --gigabytes 20

A variant of a page replaces each word by another of its language that is about as frequent, and each number
by one of the same length. Templates, tags, parameters, namespaces and addresses stay. The replacement depends
on the variant, so two variants of a page share no phrase, but the words keep their frequencies. One page in a
hundred is planted again without three in a hundred of its words. FOLDER/corpus.json has the counts.
"""

import argparse
import bz2
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from xml.sax.saxutils import escape, unescape

import numpy as np

from schemas.randomness import draws, key_from_text

SAMPLE = Path(__file__).resolve().parents[3] / "sample" / "dumps"
LANGUAGES = 104
DERIVED = {"bs": "sh", "nn": "no"}
"""Wikis without a bundled dump, and the wiki in a very similar language whose pages they permute."""
FILE_BYTES = 128 << 20
"""About this much wikitext in one file. One process writes a file."""
PLANTED_SHARE = 0.01
_LEFT_OUT_SHARE = 0.03
_RANKS = 64
"""Number of neighbors by frequency among which words are exchanged."""

_OTHER_PROJECTS = ("", "commons", "meta", "species")

_PAGE = re.compile(r"<page>.*?</page>", re.DOTALL)
_TEXT = re.compile(r"(<text[^>]*>)(.*?)(</text>)", re.DOTALL)
_TITLE = re.compile(r"<title>(.*?)</title>")
_PAGE_ID = re.compile(r"(<id>)\d+(</id>)")
_TOKEN = re.compile(
    r"(?P<kept><[^>]*>|&\w+;|https?://\S+|\{\{[^{}|]*|\|[^|={}\[\]\n]*=|\[\[[^\[\]|:]*:[^\[\]|]*|__\w+__|#\w+)"
    r"|(?P<word>[^\W\d_]{2,})|(?P<number>\d{2,})"
)


@dataclass(frozen=True)
class Wiki:
    """A bundled dump in parts that make a new dump."""

    name: str
    header: str
    """Everything before the first page."""
    pages: tuple[str, ...]
    words: tuple[str, ...]
    """The distinct words of its texts, most frequent first."""


@dataclass
class Made:
    """Counts of the written dumps."""

    files: int = 0
    pages: int = 0
    planted: int = 0
    """Pages that are near duplicates of the page before them."""
    wikitext_bytes: int = 0

    def add(self, other: "Made") -> None:
        """Adds the counts of ``other``."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


def read_wiki(path: Path) -> Wiki:
    """The bundled dump at ``path``."""
    xml = bz2.decompress(path.read_bytes()).decode()
    pages = tuple(_PAGE.findall(xml))
    counts: Counter[str] = Counter()
    for page in pages:
        for _, text, _ in _TEXT.findall(page):
            counts.update(match["word"] for match in _TOKEN.finditer(unescape(text)) if match["word"])
    words = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
    return Wiki(path.name.split("wiki")[0], xml[: xml.index("<page>")], pages, words)


def wikis(languages: int = LANGUAGES) -> list[Wiki]:
    """The largest bundled dump of each language and the derived wikis, at most this many.

    A derived wiki has other texts than its origin, because replacements depend on the name of the wiki.
    """
    largest: dict[str, Path] = {}
    # Wikidata and similar wikis have no articles.
    for path in sorted(SAMPLE.glob("*wiki*articles*.xml.bz2"), key=lambda path: path.stat().st_size):
        name = path.name.split("wiki")[0]
        if name not in _OTHER_PROJECTS:
            largest[name] = path
    names = sorted([*largest, *DERIVED])[:languages]
    return [_derive(read_wiki(largest[DERIVED[name]]), name) if name in DERIVED else read_wiki(largest[name])
            for name in names]  # fmt: skip


def _derive(origin: Wiki, name: str) -> Wiki:
    header = origin.header.replace(f"<dbname>{origin.name}wiki<", f"<dbname>{name}wiki<")
    return replace(origin, name=name, header=header)


def replacements(wiki: Wiki, variant: int) -> dict[str, str]:
    """Word -> its replacement in a variant: a permutation among neighbors by frequency."""
    places = np.arange(len(wiki.words))
    keys = draws(key_from_text(variant, wiki.name), places)
    shuffled = np.lexsort((keys, places // _RANKS)).tolist()
    return {word: wiki.words[place] for word, place in zip(wiki.words, shuffled, strict=True)}


@dataclass(frozen=True)
class Cut:
    """A text in pieces. Every second piece is a word or a number, and the others stay."""

    pieces: tuple[str, ...]
    numbers: tuple[int, ...]
    """Places of the numbers."""

    @staticmethod
    def of(text: str) -> "Cut":
        """The pieces of a text."""
        pieces: list[str] = []
        numbers: list[int] = []
        end = 0
        for match in _TOKEN.finditer(text):
            if match["kept"]:
                continue
            pieces.append(text[end : match.start()])
            if match["number"]:
                numbers.append(len(pieces))
            pieces.append(match[0])
            end = match.end()
        return Cut((*pieces, text[end:]), tuple(numbers))

    def rewritten(self, replaced: Mapping[str, str], variant: int) -> str:
        """The text with other words and numbers, in the same markup.

        >>> cut = Cut.of("In 1969 {{lang|de|Haus}} [[File:A b.png|thumb]]")
        >>> cut.rewritten({"In": "Am", "Haus": "Dach"}, 1)
        'Am 2759 {{lang|de|Dach}} [[File:A b.png|thumb]]'
        """
        # What stays contains a character other than a letter, or is a single letter, so it is not a word.
        pieces = [replaced.get(piece, piece) for piece in self.pieces]
        for place in self.numbers:
            pieces[place] = _other_number(pieces[place], variant)
        return "".join(pieces)


def _other_number(number: str, variant: int) -> str:
    """Another number with as many digits."""
    least = 10 ** (len(number) - 1)
    return str(least + key_from_text(variant, number) % (9 * least))


def without_some(text: str, key: str) -> str:
    """The text without three words in a hundred, chosen by ``key``."""
    numbers = count()
    return _TOKEN.sub(
        lambda match: (
            "" if match["word"] and key_from_text(key, next(numbers)) < _LEFT_OUT_SHARE * 2**64 else match[0]
        ),
        text,
    )


@dataclass(frozen=True)
class Page:
    """A bundled page, ready for its variants."""

    xml: str
    title: Cut
    text: Cut

    @staticmethod
    def of(xml: str) -> "Page":
        """The page in a dump's XML."""
        title, text = _TITLE.search(xml), _TEXT.search(xml)
        return Page(
            xml, Cut.of(unescape(title[1]) if title else ""), Cut.of(unescape(text[2]) if text else "")
        )


def variant_pages(wiki: Wiki, pages: Sequence[Page], variant: int) -> Iterator[tuple[str, int, bool]]:
    """Pages of a variant as XML, with the bytes of their wikitext, and whether each one is planted."""
    replaced = replacements(wiki, variant)
    for number, page in enumerate(pages):
        text, name = (cut.rewritten(replaced, variant) for cut in (page.text, page.title))
        identity = 2 * (variant * len(pages) + number) + 1
        key = f"{wiki.name} {identity}"
        copies = [text]
        if key_from_text("planted", key) < PLANTED_SHARE * 2**64:
            copies.append(without_some(text, key))
        for copy, body in enumerate(copies):
            xml = with_content(page.xml, f"{name} {identity + copy}", identity + copy, body)
            yield xml, len(body.encode()), copy == 1


def with_content(page: str, title: str, page_id: int, text: str) -> str:
    """The XML of a page with another title, id and text."""
    renamed = _TITLE.sub(lambda _: f"<title>{escape(title)}</title>", page)
    numbered = _PAGE_ID.sub(rf"\g<1>{page_id}\g<2>", renamed, count=1)
    return _TEXT.sub(lambda match: match[1] + escape(text) + match[3], numbered)


def wikitext_bytes(wiki: Wiki) -> int:
    """Bytes of the texts of all its pages."""
    return sum(len(text.encode()) for page in wiki.pages for _, text, _ in _TEXT.findall(page))


@dataclass(frozen=True)
class DumpFile:
    """One file of a new dump: some variants of all pages of a wiki."""

    wiki: Wiki
    number: int
    variants: range
    bytes: int
    """About this much wikitext."""


def plan_files(bundled: Sequence[Wiki], gigabytes: float) -> list[DumpFile]:
    """The files of a corpus of about this size, each of about FILE_BYTES, largest first.

    Every wiki gets the same number of variants, so the languages keep their shares.
    """
    sizes = [wikitext_bytes(wiki) for wiki in bundled]
    variants = max(1, round(gigabytes * 1e9 / sum(sizes)))
    files = []
    for wiki, size in zip(bundled, sizes, strict=True):
        step = max(1, FILE_BYTES // size)
        for number, first in enumerate(range(1, variants + 1, step)):
            of_file = range(first, min(first + step, variants + 1))
            files.append(DumpFile(wiki, number, of_file, size * len(of_file)))
    return sorted(files, key=lambda file: -file.bytes)


def write_file(file: DumpFile, folder: Path) -> Made:
    """Writes one file."""
    made = Made(files=1)
    with bz2.open(folder / f"{file.wiki.name}wiki-{file.number:04d}-pages-articles.xml.bz2", "wb") as stream:
        stream.write(file.wiki.header.encode())
        pages = [Page.of(xml) for xml in file.wiki.pages]
        for variant in file.variants:
            for page, size, planted in variant_pages(file.wiki, pages, variant):
                stream.write(page.encode() + b"\n")
                made.add(Made(0, 1, int(planted), size))
        stream.write(b"</mediawiki>\n")
    return made


def make(folder: Path, gigabytes: float, processes: int = 2, languages: int = LANGUAGES) -> Made:
    """Writes about this many gigabytes of wikitext into ``folder``. Does nothing if they exist.

    The bytes do not depend on the number of processes.
    """
    summary = folder / "corpus.json"
    if summary.exists():
        return Made(**json.loads(summary.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    files = plan_files(wikis(languages), gigabytes)
    made = Made()
    with ProcessPoolExecutor(processes) as pool:
        for one in pool.map(write_file, files, [folder] * len(files)):
            made.add(one)
    summary.write_text(json.dumps(asdict(made)))
    return made


def main() -> None:
    """Writes the dumps and prints what they hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print(json.dumps(asdict(make(arguments.folder, arguments.gigabytes, arguments.processes))))


if __name__ == "__main__":
    main()
