"""Compares tokenization with `tokenizers` on real sentences: sentences with equal ids, and rates.

    python -m benchmarks.corpus.tokenization DATA_FOLDER VOCAB_FOLDER [--langs en,de] [--max-megabytes 1]

For every language, cased as the vocabulary is: sentences, sentences whose ids differ, MB/s of
`tokenizers.encode_batch` on one thread (with the ids fetched) and of ours, cold (a new tokenizer) and
warm (the same text again), by processor time, medians of three. With --max-megabytes 1 a minute of it for
161 languages. Both get the text in NFC, as the pipeline gives it. The longest words are excepted.
"""

import argparse
import os
import time
import unicodedata
from pathlib import Path
from statistics import median
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pyarrow as pa
from transformers import BertTokenizerFast

from benchmarks.texts import PARTS, sentences_by_language
from pipeline.wordpiece.basic_tokenization import words_of
from pipeline.wordpiece.character_table import Accents, character_table, default_accents
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import Vocabulary, load_vocabulary
from pipeline.wordpiece.word_encoder import MAX_WORD_CHARS
from schemas.scripts import lacks_spaces

BATCH = 2_000
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("vocabulary")
    parser.add_argument("--langs", default="")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cased", choices=["yes", "no"])
    parser.add_argument("--max-megabytes", type=float, default=1e9, help="of each language")
    arguments = parser.parse_args()
    cased = None if arguments.cased is None else arguments.cased == "yes"
    vocabulary = load_vocabulary(arguments.vocabulary, cased=cased)
    theirs = reference(vocabulary)
    wanted = set(filter(None, arguments.langs.split(",")))
    texts = sentences_by_language(arguments.data, tuple(arguments.parts.split(",")))
    sizes = {lang: sum(len(s.encode()) for s in sentences) for lang, sentences in texts.items()}
    total = Totals()
    heads = (
        "sentences",
        "differ",
        "excepted",
        "MB",
        "theirs",
        "cold",
        "warm",
        "cold x",
        "warm x",
        "UNK %",
        "/word",
    )
    print(f"{'lang':10}" + "".join(f"{head:>10}" for head in heads))
    for lang in sorted(texts, key=lambda lang: -sizes[lang]):
        if not wanted or lang in wanted:
            total.add(compare(lang, cut(texts[lang], arguments.max_megabytes), vocabulary, theirs))
    print(f"\nall: {total.sentences} sentences, {total.differ} differ, {total.excepted} excepted; "
          f"{total.pieces} pieces; smallest ratio {total.slowest[0]:.1f} ({total.slowest[1]})")  # fmt: skip


class Totals:
    """Sums over the languages."""

    def __init__(self) -> None:
        self.sentences = self.differ = self.excepted = self.pieces = 0
        self.slowest = (float("inf"), "")

    def add(self, row: dict[str, Any]) -> None:
        """Adds a language's row."""
        for name in ("sentences", "differ", "excepted", "pieces"):
            setattr(self, name, getattr(self, name) + row[name])
        self.slowest = min(self.slowest, (row["ratio"], row["lang"]))


def reference(vocabulary: Vocabulary) -> Any:
    """BertTokenizerFast of the same vocabulary, without special tokens in plain text."""
    accents: Accents | None = vocabulary.accents
    strip = None if accents is None else accents == "strip"
    fast = BertTokenizerFast(
        vocab=dict(vocabulary.index), do_lower_case=not vocabulary.cased, strip_accents=strip
    )
    backend = fast.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    return backend


def cut(sentences: list[str], megabytes: float) -> list[str]:
    """The first sentences up to a size."""
    ends = np.cumsum([len(sentence.encode()) for sentence in sentences])
    return sentences[: int(np.searchsorted(ends, megabytes * 1e6, side="right"))]


def compare(lang: str, sentences: list[str], vocabulary: Vocabulary, theirs: Any) -> dict[str, Any]:
    sentences = [unicodedata.normalize("NFC", sentence) for sentence in sentences]
    array = pa.array(sentences, pa.string())
    megabytes = array.nbytes / 1e6
    begin = time.process_time()
    expected = []
    for first in range(0, len(sentences), BATCH):
        batch = sentences[first : first + BATCH]
        expected += [e.ids for e in theirs.encode_batch(batch, add_special_tokens=False)]
    slow = time.process_time() - begin
    colds, warms = list[float](), list[float]()
    for _ in range(REPEATS):
        tokenizer = WordPieceTokenizer(vocabulary)
        for times in (colds, warms):
            begin = time.process_time()
            ids, offsets = tokenizer.encode_batch(array)
            times.append(time.process_time() - begin)
    cold, warm = median(colds), median(warms)
    differ, excepted = differences(sentences, expected, ids, offsets, vocabulary.cased)
    words = max(sum(len(sentence.split()) for sentence in sentences), 1)
    unknown = 100 * float((ids == vocabulary.unknown_id).mean()) if len(ids) else 0.0
    rates = (megabytes, megabytes / slow, megabytes / cold, megabytes / warm, slow / cold, slow / warm)
    numbers = "".join(f"{number:10.2f}" for number in (*rates, unknown, len(ids) / words))
    print(f"{lang:10}{len(sentences):10}{differ:10}{excepted:10}{numbers}", flush=True)
    return {"lang": lang, "sentences": len(sentences), "differ": differ, "excepted": excepted,
            "pieces": len(ids), "ratio": slow / cold}  # fmt: skip


def differences(
    sentences: list[str], expected: list[list[int]], ids: Any, offsets: Any, cased: bool
) -> tuple[int, int]:
    """Sentences with other ids, and how many of them a documented exception explains."""
    table = character_table(cased, default_accents(cased))
    differ = excepted = 0
    for number, wanted in enumerate(expected):
        found = ids[offsets[number] : offsets[number + 1]]
        if len(found) != len(wanted) or not np.array_equal(found, wanted):
            words = words_of(sentences[number], table)
            if any(len(word) > MAX_WORD_CHARS and lacks_spaces(word) for word in words):
                excepted += 1
            else:
                differ += 1
                if differ <= 3:
                    print("   differs:", repr(sentences[number][:200]))
    return differ, excepted


if __name__ == "__main__":
    main()
