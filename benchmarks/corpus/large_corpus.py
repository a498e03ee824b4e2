"""Makes dumps of any size from the bundled ones: other words, numbers, titles and ids in the real markup.

    python -m benchmarks.corpus.large_corpus FOLDER --gigabytes 20

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
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from xml.sax.saxutils import escape, unescape

from schemas.randomness import key_from_text

SAMPLE = Path(__file__).resolve().parents[2] / "sample" / "dumps"
LANGUAGES = 104
DERIVED = {"bs": "sh", "nn": "no"}
"""Wikis without a bundled dump, and the wiki in a very similar language whose pages they permute."""
FILE_BYTES = 256 << 20
"""Wikitext in one file."""
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
    replaced: dict[str, str] = {}
    for first in range(0, len(wiki.words), _RANKS):
        block = wiki.words[first : first + _RANKS]
        keys = [key_from_text(variant, wiki.name, word) for word in block]
        shuffled = [word for _, word in sorted(zip(keys, block, strict=True))]
        replaced.update(zip(block, shuffled, strict=True))
    return replaced


def rewrite(text: str, replaced: dict[str, str], variant: int) -> str:
    """Wikitext with other words and numbers, in the same markup.

    >>> rewrite("In 1969 {{lang|de|Haus}} [[File:A b.png|thumb]]", {"In": "Am", "Haus": "Dach"}, 1)[:3]
    'Am '
    """

    def other(match: re.Match[str]) -> str:
        if match["word"]:
            return replaced.get(match["word"], match["word"])
        if match["number"]:
            digits = len(match["number"])
            return str(
                10 ** (digits - 1) + key_from_text(variant, match["number"]) % (9 * 10 ** (digits - 1))
            )
        return match[0]

    return _TOKEN.sub(other, text)


def without_some(text: str, key: str) -> str:
    """The text without three words in a hundred, chosen by ``key``."""
    numbers = count()
    return _TOKEN.sub(
        lambda match: (
            "" if match["word"] and key_from_text(key, next(numbers)) < _LEFT_OUT_SHARE * 2**64 else match[0]
        ),
        text,
    )


def variant_pages(wiki: Wiki, variant: int) -> Iterator[tuple[str, int, bool]]:
    """Pages of a variant as XML, with the bytes of their wikitext, and whether each one is planted."""
    replaced = replacements(wiki, variant)
    for number, page in enumerate(wiki.pages):
        match = _TEXT.search(page)
        text = rewrite(unescape(match[2]), replaced, variant) if match else ""
        title = _TITLE.search(page)
        name = rewrite(unescape(title[1]), replaced, variant) if title else ""
        identity = 2 * (variant * len(wiki.pages) + number) + 1
        key = f"{wiki.name} {identity}"
        copies = [text]
        if key_from_text("planted", key) < PLANTED_SHARE * 2**64:
            copies.append(without_some(text, key))
        for copy, body in enumerate(copies):
            xml = with_content(page, f"{name} {identity + copy}", identity + copy, body)
            yield xml, len(body.encode()), copy == 1


def with_content(page: str, title: str, page_id: int, text: str) -> str:
    """The XML of a page with another title, id and text."""
    renamed = _TITLE.sub(lambda _: f"<title>{escape(title)}</title>", page)
    numbered = _PAGE_ID.sub(rf"\g<1>{page_id}\g<2>", renamed, count=1)
    return _TEXT.sub(lambda match: match[1] + escape(text) + match[3], numbered)


def write_wiki(wiki: Wiki, folder: Path, variants: int) -> Made:
    """Writes all variants of a wiki, in files of FILE_BYTES of wikitext."""
    made = Made()
    in_file, file = 0, None
    for variant in range(1, variants + 1):
        for page, size, planted in variant_pages(wiki, variant):
            if file is None or in_file > FILE_BYTES:
                if file is not None:
                    file.write(b"</mediawiki>\n")
                    file.close()
                path = folder / f"{wiki.name}wiki-{made.files:04d}-pages-articles.xml.bz2"
                file = bz2.open(path, "wb")  # noqa: SIM115 - several in turn
                file.write(wiki.header.encode())
                made.files, in_file = made.files + 1, 0
            file.write(page.encode() + b"\n")
            in_file += size
            made.add(Made(0, 1, int(planted), size))
    if file is not None:
        file.write(b"</mediawiki>\n")
        file.close()
    return made


def make(folder: Path, gigabytes: float, processes: int = 2, languages: int = LANGUAGES) -> Made:
    """Writes about this many gigabytes of wikitext into ``folder``. Does nothing if they exist."""
    summary = folder / "corpus.json"
    if summary.exists():
        return Made(**json.loads(summary.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    bundled = wikis(languages)
    size = sum(
        len(text.encode()) for wiki in bundled for page in wiki.pages for _, text, _ in _TEXT.findall(page)
    )
    variants = max(1, round(gigabytes * 1e9 / size))
    made = Made()
    with ProcessPoolExecutor(processes) as pool:
        for one in pool.map(write_wiki, bundled, [folder] * len(bundled), [variants] * len(bundled)):
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
