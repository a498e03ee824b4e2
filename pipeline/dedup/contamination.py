"""Documents that hold text of an evaluation set: those that share a run of 13 words with it.

13 words is what GPT-3's authors compared (Brown et al., Language Models are Few-Shot Learners, 2020,
appendix C). In scripts without spaces every sign counts as a word, and 13 signs may be a long name;
there, and where signs stand among words, the run is 40 of either.
"""

import numpy as np
import pyarrow as pa

from pipeline.dedup.shingles import U64, Flags, HashedWords, Int64, hashed_words, word_runs
from schemas.arrays import distinct_values

RUN_WORDS = 13
RUN_SIGNS = 40


def comparable_runs(words: HashedWords) -> tuple[U64, Int64]:
    """The hashes of the runs that are compared, and the word where each begins."""
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
    """The distinct runs of the texts of an evaluation set, ascending."""
    return distinct_values(comparable_runs(hashed_words(texts, np.arange(len(texts) + 1)))[0])


def contaminated(words: HashedWords, runs: U64) -> Flags:
    """Which documents hold one of the runs."""
    hashes, begins = comparable_runs(words)
    out = np.zeros(len(words.offsets) - 1, bool)
    if len(runs):
        places = np.minimum(np.searchsorted(runs, hashes), len(runs) - 1)
        met = begins[runs[places] == hashes]
        out[np.searchsorted(words.offsets, met, side="right") - 1] = True
    return out
