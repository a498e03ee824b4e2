"""Compares the vocabulary trainer with that of `tokenizers`, on the same word counts.

    python -m benchmarks.corpus.vocabulary DATA_FOLDER --size 119547 [--megabytes 20]
        [--theirs no] [--out FOLDER]

Both get the same sentences and therefore the same counts, without smoothing between languages. Prints seconds
and hashes of two trainings of each, and pieces per word by language with either vocabulary, cut by the same
tokenizer.
"""

import argparse
import hashlib
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from benchmarks.peak_memory import peak_resident_bytes
from benchmarks.texts import PARTS, sentences_by_language
from pipeline.wordpiece.character_table import default_accents, normalizer_for
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.training import train
from pipeline.wordpiece.vocabulary import Vocabulary, smooth_tables, vocabulary_bytes, write_tokenizer
from pipeline.wordpiece.word_counts import frequent_words, word_counts
from schemas.vocabulary import SPECIAL_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, default=119_547)
    parser.add_argument("--megabytes", type=float, default=1e9, help="of each language at most")
    parser.add_argument("--smoothing", type=float, default=1.0)
    parser.add_argument("--min-count", type=int, default=1)
    parser.add_argument("--uncased", action="store_true", help="fold as BERT's uncased models do")
    parser.add_argument("--theirs", choices=["yes", "no"], default="yes")
    parser.add_argument("--out", help="folder for the vocabulary")
    arguments = parser.parse_args()
    texts = {
        lang: cut(sentences, arguments.megabytes * 1e6)
        for lang, sentences in sentences_by_language(arguments.data, PARTS).items()
    }
    begin = time.perf_counter()
    cased = not arguments.uncased
    tables = {lang: word_counts(sentences, cased=cased) for lang, sentences in texts.items()}
    megabytes = sum(len(s.encode()) for sentences in texts.values() for s in sentences) / 1e6
    print(f"{megabytes:.0f} MB in {len(texts)} languages; counted in {time.perf_counter() - begin:.0f} s")
    totals = {lang: pc.sum(table["count"]).as_py() or 0 for lang, table in tables.items()}
    smoothed = smooth_tables(tables, totals, arguments.smoothing)
    counts = frequent_words(smoothed, arguments.min_count)
    print(f"{counts.num_rows} distinct words")
    ours = ours_twice(counts, arguments.size)
    if arguments.out:
        write_tokenizer(arguments.out, ours, cased, default_accents(cased))
    if arguments.theirs == "yes":
        theirs = theirs_twice(texts, arguments.size, cased)
        compare(tables, ours, theirs, cased)


def cut(sentences: list[str], size: float) -> list[str]:
    """The first sentences up to a size in bytes."""
    out = []
    for sentence in sentences:
        size -= len(sentence.encode())
        if size < 0:
            break
        out.append(sentence)
    return out


def report(name: str, pieces: list[str], begin: float) -> None:
    digest = hashlib.sha256(vocabulary_bytes(pieces)).hexdigest()[:16]
    peak = peak_resident_bytes() / 1e9
    print(f"{name}: {len(pieces)} pieces, {time.perf_counter() - begin:.0f} s, "
          f"sha256 {digest}, peak so far {peak:.2f} GB", flush=True)  # fmt: skip


def ours_twice(counts: pa.Table, size: int) -> list[str]:
    pieces: list[str] = []
    for words in (counts, counts.take(pa.array(range(counts.num_rows - 1, -1, -1)))):
        begin = time.perf_counter()
        training = train(words, size)
        pieces = training.pieces
        report("ours", pieces, begin)
    return pieces


def theirs_twice(texts: dict[str, list[str]], size: int, cased: bool) -> list[str]:
    pieces: list[str] = []
    for _ in range(2):
        begin = time.perf_counter()
        tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizer_for(cased, default_accents(cased))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = [*SPECIAL_TOKENS, *(f"[unused{number}]" for number in range(1, 100))]
        trainer = WordPieceTrainer(
            vocab_size=size, special_tokens=special, limit_alphabet=100_000, show_progress=False
        )
        tokenizer.train_from_iterator((s for sentences in texts.values() for s in sentences), trainer)
        vocabulary = tokenizer.get_vocab()
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        report("theirs", pieces, begin)
    return pieces


def compare(tables: dict[str, pa.Table], ours: list[str], theirs: list[str], cased: bool) -> None:
    """Pieces per word of either vocabulary."""
    tokenizers = [WordPieceTokenizer(Vocabulary(pieces, cased=cased)) for pieces in (ours, theirs)]
    worse = []
    total = [0, 0, 0]
    print(f"{'lang':10}{'words':>10}{'ours':>8}{'theirs':>8}{'ratio':>8}{'UNK ours':>10}{'UNK theirs':>11}")
    for lang in sorted(tables, key=lambda lang: -tables[lang]["count"].to_numpy().sum()):
        counts = tables[lang]["count"].to_numpy()
        pieces, unknown = [], []
        for tokenizer in tokenizers:
            ids, offsets = tokenizer.encode_batch(tables[lang]["word"])
            pieces.append(int(((offsets[1:] - offsets[:-1]) * counts).sum()))
            missing = ids[offsets[:-1]] == tokenizer.vocabulary.unknown_id
            unknown.append(int(counts[missing].sum()))
        words = max(int(counts.sum()), 1)
        ratio = pieces[0] / max(pieces[1], 1)
        total = [total[0] + words, total[1] + pieces[0], total[2] + pieces[1]]
        if ratio > 1:
            worse.append((round(ratio, 4), lang))
        print(f"{lang:10}{words:10}{pieces[0] / words:8.4f}{pieces[1] / words:8.4f}{ratio:8.4f}"
              f"{unknown[0]:10}{unknown[1]:11}")  # fmt: skip
    print(f"all: {total[1] / total[0]:.4f} against {total[2] / total[0]:.4f}; "
          f"{len(worse)} languages worse: {sorted(worse)[-8:]}")  # fmt: skip


if __name__ == "__main__":
    main()
