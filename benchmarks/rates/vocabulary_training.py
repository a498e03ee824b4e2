"""Measures what the training of a vocabulary depends on, for the forecast of `bertmill plan`.

    python -m benchmarks.rates.vocabulary_training [WORDS ...] [--size N]

The words are those of the bundled dumps, and the head of one with the tail of another word of the same
language, with counts as in a text (Zipf). Prints the CPU seconds of what few cores do in the stage: the
reduction of buckets of word counts, and the one task that smooths the counts and trains the vocabulary.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from benchmarks.corpus.large.corpus import Wiki, wikis
from pipeline.engine.commit import StageFolder
from pipeline.stages import vocabulary as stage
from pipeline.wordpiece.training import train
from pipeline.wordpiece.word_counts import WordBucketCounts

REPEATS = 3
"""Rows of one word of one language in a bucket, one from each map task."""
BUCKETS = 8
SHARE_OF_MOST_FREQUENT = 0.05
# The defaults of the section vocabulary of a build.
MAX_WORDS, SMOOTHING = 500_000, 0.7


def words_of(wiki: Wiki, number: int) -> list[str]:
    """Distinct words of a language: the wiki's, then the head of one with the tail of another."""
    rng = random.Random(wiki.name)
    words = dict.fromkeys(wiki.words[:number])
    while len(words) < number:
        head, tail = rng.choice(wiki.words), rng.choice(wiki.words)
        word = head[: len(head) // 2 + 1] + tail[len(tail) // 2 :]
        # The words of a short dump have few combinations.
        while word in words:
            word += rng.choice(wiki.words)[:3]
        words[word] = None
    return list(words)


def counted(languages: Sequence[Wiki], number: int) -> pa.Table:
    """About ``number`` words of all languages in the columns lang, word and count."""
    each = number // len(languages)
    counts = np.maximum(1, 100 * each * SHARE_OF_MOST_FREQUENT / np.arange(1, each + 1)).astype(np.int64)
    parts = [
        pa.table([pa.array([wiki.name] * each), words_of(wiki, each), counts], schema=stage.WORD_COUNTS)
        for wiki in languages
    ]
    return pa.concat_tables(parts).combine_chunks()


def measure(words: pa.Table, size: int, folder_uri: str) -> tuple[list[float], int]:
    """CPU seconds of the reductions, the smoothing and the training, and the distinct words trained from."""
    folder = StageFolder.create(folder_uri, "words", WordBucketCounts, words.num_rows)
    buckets = stage._word_bucket(words["word"], BUCKETS)
    split = [words.filter(pa.array(buckets == bucket)) for bucket in range(BUCKETS)]
    moments = [time.process_time()]
    totals: Counter[str] = Counter()
    names = [f"bucket-{bucket:05d}" for bucket in range(BUCKETS)]
    for name, table in zip(names, split, strict=True):
        marker = stage._commit_counts(folder, name, pa.concat_tables([table] * REPEATS), 1, MAX_WORDS)
        totals.update(marker.counts.words_by_language)
    moments.append(time.process_time())
    smoothed = stage._smoothed(stage._Buckets(folder, names), totals, SMOOTHING)
    moments.append(time.process_time())
    trained = train(smoothed, size)
    moments.append(time.process_time())
    return [after - before for before, after in pairwise(moments)], trained.words


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", type=float, default=[0.2e6, 0.6e6, 1.2e6, 1.8e6])
    parser.add_argument("--size", type=int, default=119_547)
    arguments = parser.parse_args()
    languages = [wiki for wiki in wikis() if wiki.words]
    print(f"{sum(len(wiki.words) for wiki in languages):,} words in the dumps of {len(languages)} languages")
    for number in arguments.words:
        words = counted(languages, int(number))
        with tempfile.TemporaryDirectory() as folder:
            (reduction, smoothing, training), distinct = measure(words, arguments.size, folder)
        rows = words.num_rows * REPEATS
        print(
            f"{rows:,} rows in buckets: {reduction:.2f} s; {words.num_rows:,} words of languages: smoothing"
            f" {smoothing:.2f} s; {distinct:,} distinct words: training {training:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
