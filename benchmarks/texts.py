"""Reads the texts of a folder of real data: wiki samples, books and parallel documents, by language."""

import json
import lzma
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

SENTENCE_END = re.compile(r"(?<=[.!?।。！？။።])\s+|\n+")
PARTS = ("text", "books", "pretrain")


def texts(
    folder: Path, parts: tuple[str, ...] = PARTS, left_out: str | None = None
) -> Iterator[tuple[str, str]]:
    """(language, text) of every document, in a fixed order, without files named like ``left_out``."""
    for part in parts:
        for path in sorted((folder / part).rglob("*")):
            if left_out is not None and left_out in path.name:
                continue
            if path.suffix == ".zip":
                yield from _zipped(path)
            elif ".jsonl" in path.name:
                yield from ((record["lang"], record["text"]) for record in records(path))
            elif path.name.endswith(".txt.xz"):
                lang = path.parent.name if part == "books" else "en"
                yield lang, lzma.decompress(path.read_bytes()).decode("utf-8")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a .jsonl.xz or .jsonl.zst file."""
    open_text = lzma.open if path.suffix == ".xz" else zstandard.open
    with open_text(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _zipped(path: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt") and "README" not in name:
                yield path.stem, archive.read(name).decode("utf-8", "replace")


def sentences_by_language(folder: Path, parts: tuple[str, ...] = PARTS) -> dict[str, list[str]]:
    """Sentences by language, cut at full stops and line ends."""
    out: dict[str, list[str]] = {}
    for lang, text in texts(folder, parts):
        out.setdefault(lang, []).extend(filter(None, SENTENCE_END.split(text)))
    return out
