"""Writes sentences of the bundled books, labeled by language, for the fine-tuning tutorial.

python examples/label_sentences.py runs/book-language
"""

import gzip
import sys
from pathlib import Path

from pipeline.text.sentences.split import split_sentences

BOOKS = Path(__file__).resolve().parents[1] / "sample" / "books"
LANGUAGES = ("el", "en", "ja", "pt", "ru")
EACH = 400
"""Sentences of each language."""


def sentences(language: str) -> list[str]:
    """The first sentences of the language's books, without headings and other short lines."""
    found: list[str] = []
    for path in sorted((BOOKS / language).glob("*.txt.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            found += [text for text in split_sentences(line.strip(), language) if len(text) >= 20]
    return found[:EACH]


def main(folder: str) -> None:
    """Writes train.tsv, validation.tsv and test.tsv: 8, 1 and 1 of every ten sentences."""
    rows = [(text, language) for language in LANGUAGES for text in sentences(language)]
    parts = {
        "train": [row for number, row in enumerate(rows) if number % 10 > 1],
        "validation": rows[::10],
        "test": rows[1::10],
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        lines = ["sentence\tlabel", *("\t".join(row) for row in part)]
        Path(folder, f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(part)} sentences")


if __name__ == "__main__":
    main(sys.argv[1])
