"""Measures sentences to shards on real text: rates per core, beside the plain reference in the same run.

    python -m benchmarks.corpus.instances TEXT.jsonl.zst [--megabytes 24] [--vocabulary FOLDER] [--json FILE]
    python -m benchmarks.corpus.instances --chi-square 1000000 [--unit whole_word]

The first form reads documents with a `text` and a `lang`, splits and tokenizes them, and prints MB of text
(UTF-8 bytes of the sentences) per second of processor time for every masking unit and length: already
tokenized, and with tokenization. It also prints the rate of the reference of tests/ (the algorithm of
google-research/bert in plain Python) on the same sentences, the bytes per token of the shards, the rate for
the same text as one document, and the estimated rate of LDDL on this machine, from the rate of `tokenizers`
encode_batch on one thread in the same run. The second form compares this number of rows of the fast and the
slow instances by distribution (chi-square) and exits with 1 when one differs.
"""

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import numpy.typing as npt
from tokenizers import BertWordPieceTokenizer

from benchmarks.texts import records
from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.instances.shards import encode_shard
from pipeline.text.normalize import normalize_text
from pipeline.text.sentences.split import split_sentences
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.training import train_wordpiece
from pipeline.wordpiece.vocabulary import Vocabulary, load_vocabulary
from pipeline.wordpiece.word_counts import count_words
from schemas.masking.targets import MaskingRule, MaskingVocabulary, offsets_of
from tests.support.reference_instances import (
    Rules,
    compatible_instances,
    golden_corpus,
    golden_vocabulary,
    policy_instances,
)
from tests.support.statistics_of_instances import (
    SIGNIFICANCE,
    Histograms,
    bucket_of,
    instances_of,
    settings_of,
)

UNITS = ("token", "whole_word", "span", "ngram")
LENGTHS = {128: 20, 512: 80}
VOCABULARY_SIZE = 30_522
# LDDL with --masking, pairs and masks alone and with tokenization, on one core of a machine where
# encode_batch on one thread has the third rate. All in MB of text per second.
LDDL_PAIRS, LDDL_ALL, LDDL_YARDSTICK = 3.2, 0.70, 1.95


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--megabytes", type=float, default=24, help="of text")
    parser.add_argument("--reference-megabytes", type=float, default=2, help="of text for the slow reference")
    parser.add_argument("--vocabulary", help="folder; without it one is trained on the text")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--chi-square", type=int, metavar="ROWS")
    parser.add_argument("--unit", choices=UNITS, action="append")
    arguments = parser.parse_args()
    if arguments.chi_square:
        return compare(arguments.chi_square, arguments.unit or list(UNITS))
    figures = rates(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


# ------------------------------------------------------------------ rates


def cpu_seconds(work: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The best of some runs, in processor time, which other processes affect least."""
    best, result = float("inf"), None
    for _ in range(repeats):
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    return best, result


def rates(arguments: argparse.Namespace) -> dict[str, Any]:
    documents = list(read_documents(arguments.text, arguments.megabytes * 1e6))
    sentences = [sentence for _, document in documents for sentence in document]
    megabytes = sum(len(sentence.encode()) for sentence in sentences) / 1e6
    vocabulary = the_vocabulary(arguments.vocabulary, sentences)
    tokenizer = WordPieceTokenizer(vocabulary)
    tokenizing, (ids, offsets) = cpu_seconds(lambda: tokenizer.encode_batch(sentences), 2)
    counts = np.array([len(document) for _, document in documents], np.int64)
    bucket = bucket_from(np.asarray(ids), np.asarray(offsets), counts, [lang for lang, _ in documents])
    print(
        f"{megabytes:.1f} MB of text, {len(documents):,} documents, {len(sentences):,} sentences, "
        f"{bucket.token_ids.size:,} pieces of {len(vocabulary.pieces):,}; tokenized at "
        f"{megabytes / tokenizing:.1f} MB/s"
    )
    reference = reference_rate(bucket, vocabulary, arguments.reference_megabytes * 1e6, megabytes)
    print(f"reference, pairs and masks, length 128: {reference:.2f} MB/s\n")
    heads = ("rows", "instances", "+ shard", "+ tokens", "x reference", "B/token")
    print(f"{'unit':11}{'length':>7}{'objective':>10}" + "".join(f"{head:>12}" for head in heads))
    table = []
    for unit in UNITS:
        for length in LENGTHS:
            for objective in ("nsp", "none") if unit == "whole_word" else ("nsp",):
                row = one_rate(bucket, vocabulary, unit, length, objective)
                figures: dict[str, Any] = {
                    "unit": unit,
                    "length": length,
                    "objective": objective,
                    "rows": row["rows"],
                    "instances_mb_s": megabytes / row["making"],
                    "with_shards_mb_s": megabytes / (row["making"] + row["writing"]),
                    "with_tokenization_mb_s": megabytes / (row["making"] + row["writing"] + tokenizing),
                    "times_reference": megabytes / row["making"] / reference,
                    "bytes_per_token": row["bytes"] / row["tokens"],
                }
                print(
                    "{unit:11}{length:7}{objective:>10}{rows:12,}{instances_mb_s:12.1f}{with_shards_mb_s:12.1f}"
                    "{with_tokenization_mb_s:12.1f}{times_reference:12.1f}{bytes_per_token:12.3f}".format(
                        **figures
                    )
                )
                table.append(figures)
    whole = bucket_from(bucket.token_ids, bucket.sentence_offsets, np.array([counts.sum()]), ["en"])
    one = megabytes / one_rate(whole, vocabulary, "whole_word", 128, "nsp")["making"]
    print(f"\nthe same text as one document, whole_word, 128: {one:.1f} MB/s")
    yardstick = encode_batch_rate(sentences, vocabulary)
    against = beside_lddl(table, yardstick)
    return {
        "megabytes": megabytes,
        "reference_mb_s": reference,
        "rates": table,
        "one_document_mb_s": one,
        "encode_batch_mb_s": yardstick,
        "slowest_times_lddl": against,
    }


def encode_batch_rate(sentences: list[str], vocabulary: Vocabulary) -> float:
    """MB of text per second of `tokenizers` on one thread, with the same vocabulary."""
    some = sentences[: len(sentences) // 4]
    theirs = BertWordPieceTokenizer(dict(vocabulary.index), lowercase=not vocabulary.cased)
    seconds, _ = cpu_seconds(lambda: theirs.encode_batch(some, add_special_tokens=False), 2)
    return sum(len(sentence.encode()) for sentence in some) / 1e6 / seconds


def beside_lddl(table: list[dict[str, Any]], yardstick: float) -> dict[str, float]:
    """Prints and returns the ratio of the slowest row to LDDL's rate, estimated for this machine."""
    scale = yardstick / LDDL_YARDSTICK
    pairs, everything = LDDL_PAIRS * scale, LDDL_ALL * scale
    print(f"encode_batch: {yardstick:.2f} MB/s, so LDDL {pairs:.2f} and {everything:.2f} MB/s")
    slowest = {}
    for column, rate in (("instances_mb_s", LDDL_PAIRS), ("with_tokenization_mb_s", LDDL_ALL)):
        row = min(table, key=lambda row: float(row[column]))
        slowest[column] = row[column] / (rate * scale)
        print(f"slowest, {column}: {row['unit']} {row['length']}, {slowest[column]:.1f} x LDDL")
    return slowest


def read_documents(path: Path, limit: float) -> Iterator[tuple[str, list[str]]]:
    """Language and sentences of each document until ``limit`` bytes are read."""
    read = 0
    for record in records(path):
        lang = record["lang"]
        yield lang, split_sentences(normalize_text(record["text"], lang), lang)
        read += len(record["text"].encode())
        if read >= limit:
            return


def the_vocabulary(folder: str | None, sentences: list[str]) -> Vocabulary:
    if folder is not None:
        return load_vocabulary(folder)
    return Vocabulary(train_wordpiece(count_words(sentences, cased=True), VOCABULARY_SIZE), cased=True)


def bucket_from(
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    langs: list[str],
) -> BucketDocuments:
    keys = [f"benchmark/{lang}/{number}/{7 * number}" for number, lang in enumerate(langs)]
    return BucketDocuments(ids, offsets, offsets_of(counts), langs, keys, np.zeros(len(langs), np.int64))


def one_rate(
    bucket: BucketDocuments, vocabulary: Vocabulary, unit: Any, length: int, objective: Any
) -> dict[str, float]:
    index = vocabulary.index
    settings = InstanceSettings(
        vocabulary=MaskingVocabulary.from_pieces(vocabulary.pieces),
        cls_id=index["[CLS]"],
        sep_id=index["[SEP]"],
        unknown_id=index["[UNK]"],
        max_seq_length=length,
        objective=objective,
        masking=MaskingRule(unit=unit, max_predictions=LENGTHS[length]),
    )
    making, made = cpu_seconds(lambda: make_instances(bucket, settings, 1, 0))
    writing, data = cpu_seconds(lambda: encode_shard(made.table))
    tokens = sum(counts.sequence_tokens for counts in made.counts.values())
    return {
        "making": making,
        "writing": writing,
        "rows": made.table.num_rows,
        "bytes": len(data),
        "tokens": tokens,
    }


def reference_rate(bucket: BucketDocuments, vocabulary: Vocabulary, limit: float, megabytes: float) -> float:
    """MB/s of the original's algorithm on the first documents, from lists of pieces in memory."""
    share = min(1.0, limit / 1e6 / megabytes)
    count = max(2, int(share * len(bucket.keys)))
    corpus = []
    for number in range(count):
        first, stop = bucket.document_offsets[number : number + 2]
        bounds = bucket.sentence_offsets[first : stop + 1]
        sentences = [bucket.token_ids[lo:hi].tolist() for lo, hi in itertools.pairwise(bounds) if hi > lo]
        if sentences:
            corpus.append([[vocabulary.pieces[token] for token in sentence] for sentence in sentences])
    tokens = sum(len(sentence) for document in corpus for sentence in document)
    rules = Rules(max_seq_length=128, max_predictions=20)
    seconds, _ = cpu_seconds(lambda: compatible_instances(corpus, vocabulary.pieces, rules, 1, 1), 1)
    return megabytes * tokens / bucket.token_ids.size / seconds


# ------------------------------------------------------------------ chi-square


def compare(wanted: int, units: list[str]) -> int:
    """Makes ``wanted`` rows of both kinds. Returns the probabilities that they have equal distributions."""
    vocabulary = golden_vocabulary()
    corpus = golden_corpus(200)
    bucket = bucket_of(corpus, vocabulary)
    rules = Rules(max_seq_length=64, max_predictions=10)
    differ = False
    for unit in units:
        settings = settings_of(rules, unit, vocabulary)
        fast, slow, rng = Histograms(), Histograms(), random.Random(1)
        made, number = 0, 0
        while made < wanted:
            for instance in instances_of(make_instances(bucket, settings, 11, number).table):
                fast.add(instance, rng)
                made += 1
            number += 1
        done, seed = 0, 0
        while done < wanted:
            for instance in policy_instances(corpus, vocabulary, rules, seed, unit):
                slow.add(instance, rng)
                done += 1
            seed += 1
        probabilities = fast.compare(slow)
        worst = min(probabilities, key=lambda name: probabilities[name])
        differ |= probabilities[worst] < SIGNIFICANCE
        shown = ", ".join(f"{name} {value:.3f}" for name, value in probabilities.items())
        print(f"{unit}: {made:,} fast and {done:,} slow rows; p = {shown}", flush=True)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
