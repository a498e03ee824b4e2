"""Text of a data folder as files for the corpus job, and texts of evaluation sets that it can compare."""

import contextlib
import glob
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import zstandard

from schemas.errors import InputError

PARTS = 16
"""Files, which are the units of extraction."""


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file of JSON lines, compressed with zstd."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        yield from io.TextIOWrapper(stream, encoding="utf-8")


def distribute(
    lines: Iterable[str], folder: Path, name_of: Callable[[dict[str, Any]], str | None], parts: int
) -> Counter[str]:
    """Writes ``folder``/NAME-PART.jsonl.zst, lines unchanged and in order. Returns the lines of each name.

    ``name_of`` a record is the NAME of its line, or None to leave it out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as files:
        outputs: dict[tuple[str, int], Any] = {}
        for line in lines:
            name = name_of(json.loads(line))
            if name is None:
                continue
            key = (name, counts[name] % parts)
            if key not in outputs:
                path = folder / f"{name}-{key[1]}.jsonl.zst"
                outputs[key] = files.enter_context(zstandard.open(path, "wt", encoding="utf-8"))
            outputs[key].write(line)
            counts[name] += 1
    return counts


def gather(origins: list[tuple[str, float | None]], folder: Path, parts: int = PARTS) -> dict[str, Any]:
    """Writes the text of ``origins`` to ``folder``. Returns documents and megabytes by language.

    An origin is a glob, and the megabytes to take of each language, from the start, or None for all.
    Raises InputError when a glob matches nothing.
    """
    documents: Counter[str] = Counter()
    size: Counter[str] = Counter()

    def lines() -> Iterator[str]:
        for pattern, most in origins:
            paths = sorted(glob.glob(pattern))  # noqa: PTH207 - an absolute pattern
            if not paths:
                raise InputError(f"{pattern}: no such files")
            taken: Counter[str] = Counter()
            for path in paths:
                for line in lines_of(Path(path)):
                    record = json.loads(line)
                    language, length = record["lang"], len(record["text"].encode())
                    if most is not None and taken[language] + length > most * 1e6:
                        continue
                    taken[language] += length
                    size[language] += length
                    documents[language] += 1
                    yield line

    distribute(lines(), folder, lambda _: "text", parts)
    return {
        "documents": sum(documents.values()),
        "megabytes": round(sum(size.values()) / 1e6, 1),
        "languages": {
            language: {"documents": documents[language], "megabytes": round(size[language] / 1e6, 2)}
            for language in sorted(documents)
        },
    }


def sentences_of_columns(pattern: str, target: Path) -> int:
    """Writes the sentences of column files (word, tab, tag; CoNLL-U) as JSON lines. Returns their number.

    The check for contamination compares running text, which those files do not hold.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with target.open("w", encoding="utf-8") as out:
        for path in sorted(glob.glob(pattern)):  # noqa: PTH207 - an absolute pattern
            words: list[str] = []
            with _open_text(Path(path)) as lines:
                for line in (*lines, "\n"):
                    fields = line.rstrip("\r\n").split("\t")
                    if line.strip() and not line.startswith("# "):
                        # CoNLL-U has the word in its second column, after a number.
                        words.append(fields[1] if len(fields) > 4 else fields[0])
                    elif not line.strip() and words:
                        out.write(json.dumps({"text": " ".join(words)}, ensure_ascii=False) + "\n")
                        written, words = written + 1, []
    return written


def join_labels(pairs: Path, labels: Path, target: Path) -> int:
    """Writes ``target`` (JSON lines: text, pair, label) of ``pairs`` and of the last column of ``labels``.

    XNLI without labels, and KorNLI, its translation line by line with a header, which has them. Returns the
    number of pairs. Raises InputError when the files do not fit together.
    """
    with _open_text(pairs) as lines:
        texts = [line.rstrip("\r\n").split("\t") for line in lines]
    with _open_text(labels) as lines:
        names = [line.rstrip("\r\n").split("\t")[-1] for line in lines][1:]
    if len(names) != len(texts) or any(len(fields) < 2 for fields in texts):
        raise InputError(f"{labels}: has {len(names)} labels, but {pairs} has {len(texts)} pairs")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as out:
        for fields, name in zip(texts, names, strict=True):
            row = {"text": fields[0], "pair": fields[1], "label": name}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(texts)


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
