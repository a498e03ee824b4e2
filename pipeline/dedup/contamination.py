"""Finds documents that contain text of an evaluation set: those that share a run of 13 words with it.

GPT-3's authors compared runs of 13 words (Brown et al., Language Models are Few-Shot Learners, 2020, appendix
C). In scripts without spaces every character counts as a word, and 13 characters may be one long name. A run
with such characters therefore has 40 words or characters.
"""

import numpy as np
import pyarrow as pa

from pipeline.dedup.shingles import HashedWords, hashed_words, word_runs
from schemas.arrays import I64, U64, Flags, distinct_values

RUN_WORDS = 13
RUN_SIGNS = 40


def comparable_runs(words: HashedWords) -> tuple[U64, I64]:
    """The hashes of the runs to compare, and the index of the first word of each."""
    before = np.concatenate(([0], np.cumsum(words.is_sign)))
    hashes, begins = word_runs(words, RUN_WORDS)
    of_words = before[begins + RUN_WORDS] == before[begins]
    long_hashes, long_begins = word_runs(words, RUN_SIGNS)
    of_signs = before[long_begins + RUN_SIGNS] > before[long_begins]
    return (
        np.concatenate((hashes[of_words], long_hashes[of_signs])),
        np.concatenate((begins[of_words], long_begins[of_signs])),
    )


def evaluation_runs(texts: pa.Array) -> U64:
    """The distinct runs in the texts of an evaluation set, ascending."""
    return distinct_values(comparable_runs(hashed_words(texts, np.arange(len(texts) + 1)))[0])


def contaminated(words: HashedWords, runs: U64) -> Flags:
    """[documents] whether each document contains one of the runs."""
    hashes, begins = comparable_runs(words)
    out = np.zeros(len(words.offsets) - 1, bool)
    if len(runs):
        places = np.minimum(np.searchsorted(runs, hashes), len(runs) - 1)
        met = begins[runs[places] == hashes]
        out[np.searchsorted(words.offsets, met, side="right") - 1] = True
    return out
