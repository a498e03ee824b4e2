"""Trains a WordPiece vocabulary from word counts, to the same bytes on every machine.

The training merges pairs of subwords, most frequent pair first, as in byte-pair encoding. This makes more
subwords than needed. Then it splits every word as the tokenizer does, and removes the least used subwords
(mostly partial words from which longer subwords were made).

The result does not depend on the order of the counts, on hashing or on the number of workers. Words are
sorted, subwords are numbered in the order of their creation, and these numbers break ties. All counts are
64-bit integers.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wordpiece.alphabet import Alphabet, VocabularyError, choose_alphabet
from pipeline.wordpiece.pair_merges import PairMerges
from pipeline.wordpiece.word_counts import WORD_COUNTS, counts_table, most_frequent, sum_word_counts
from pipeline.wordpiece.word_encoder import MAX_WORD_CHARS, WordEncoder, stretches
from schemas.scripts import lacks_spaces
from schemas.vocabulary import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

# Enough for every word of half a gigabyte of text in 160 languages. A letter takes about 30 bytes of memory.
MAX_WORDS = 3_500_000
MAX_LETTERS = 24_000_000
# Ratio of merged subwords to kept ones. A higher ratio (1.15) makes texts slightly shorter overall, but
# longer in rare scripts. At 1.06 no language in benchmarks/results/vocabulary.md is worse than with
# `tokenizers`.
_SURPLUS = 1.06
_COUNT_LIMIT = 1 << 62
# Words per batch, for bounded memory.
_WORDS_AT_ONCE = 100_000


@dataclass(frozen=True)
class Training:
    """A trained vocabulary, and counts of what was left out."""

    pieces: list[str]
    words: int
    # Distinct words beyond the limits, and their share of all counts.
    words_pruned: int
    pruned_share: float
    words_too_long: int
    alphabet: int
    # Distinct characters outside the alphabet, and their share of all characters.
    characters_left_out: int
    left_out_share: float


def train_wordpiece(
    counts: Mapping[str, int] | pa.Table,
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
) -> list[str]:
    """The subwords of a vocabulary of exactly ``size``: special tokens, unused slots, alphabet, merges.

    Raises VocabularyError if there are too few words for the size, if the alphabets do not fit, or if there
    is not enough memory.
    """
    return train(counts, size, unused, max_words=max_words, max_letters=max_letters).pieces


def train(
    counts: Mapping[str, int] | pa.Table,
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
    surplus: float = _SURPLUS,
) -> Training:
    """As `train_wordpiece`, with counts of what was left out."""
    try:
        total = _total(counts)
        if total >= _COUNT_LIMIT:
            raise VocabularyError(f"word counts add up to {total}, over 2^62")
        table = counts if isinstance(counts, pa.Table) else counts_table(counts)
        if (pc.min(table["count"]).as_py() or 0) < 0:
            raise VocabularyError("word counts are negative, or add up to more than 2^63")
        return _train(table, size, unused, max_words, max_letters, surplus)
    except MemoryError as error:
        # Silently using fewer words would make the vocabulary depend on the machine.
        raise VocabularyError(
            f"vocabulary.max_letters {max_letters}: not enough memory for the letters of the distinct words "
            "(about 30 bytes each); lower it or give the task more memory"
        ) from error


def _train(
    counts: pa.Table, size: int, unused: int, max_words: int, max_letters: int, surplus: float
) -> Training:
    opening = [*SPECIAL_TOKENS, *(f"[unused{number}]" for number in range(1, unused + 1))]
    free = size - len(opening)
    selected = _select_words(counts, max_words, max_letters)
    alphabet = choose_alphabet(counts, free, size)
    usable = _covered(selected.words, alphabet)
    merges_needed = free - len(alphabet.pieces)
    merges = PairMerges(usable, alphabet.pieces)
    merges.run(int(merges_needed * surplus))
    merged = merges.merged_pieces()
    del merges
    # If the merges are too few, rarer characters fill the vocabulary.
    alphabet = alphabet.widened(merges_needed - len(merged))
    merges_needed = free - len(alphabet.pieces)
    if len(merged) < merges_needed:
        most = len(opening) + len(alphabet.pieces) + len(merged)
        raise VocabularyError(
            f"vocabulary.size {size}: these {usable.num_rows} words give at most {most} subwords; "
            f"lower the size or add text"
        )
    kept = _drop_least_used(usable, alphabet.pieces, merged, len(merged) - merges_needed)
    training = Training(
        pieces=[*opening, *alphabet.pieces, *kept],
        words=usable.num_rows,
        words_pruned=selected.pruned,
        pruned_share=selected.pruned_share,
        words_too_long=selected.too_long,
        alphabet=len(alphabet.pieces),
        characters_left_out=len(alphabet.rest),
        left_out_share=alphabet.left_out_share,
    )
    if alphabet.rest:
        message = "vocabulary: the %d rarest characters have no subword (%.4f%% of all characters)"
        logger.warning(message, len(alphabet.rest), 100 * alphabet.left_out_share)
    logger.info("vocabulary: %d subwords from %d words", size, training.words)
    return training


# ---------------------------------------------------------------- words


@dataclass(frozen=True)
class _Selection:
    words: pa.Table
    pruned: int
    pruned_share: float
    too_long: int


def _select_words(counts: pa.Table, max_words: int, max_letters: int) -> _Selection:
    """The most frequent words within the limits. A hash breaks ties."""
    usable, too_long = _cut_long_words(counts)
    kept = most_frequent(usable, max_words, max_letters)
    pruned = usable.num_rows - kept.num_rows
    share = (_total(usable) - _total(kept)) / _total(counts) if pruned else 0.0
    if pruned:
        message = "vocabulary: left out the %d rarest of %d distinct words (%.3f%% of all words)"
        logger.warning(message, pruned, usable.num_rows, 100 * share)
    return _Selection(kept, pruned, share, too_long)


def _total(counts: Mapping[str, int] | pa.Table) -> int:
    """The sum of the counts, exact even beyond 64 bits."""
    if not isinstance(counts, pa.Table):
        return sum(counts.values())
    numbers = counts["count"].to_numpy()
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


def _cut_long_words(counts: pa.Table) -> tuple[pa.Table, int]:
    """Long words split as in the tokenizer, and the number of words that become [UNK]."""
    long = pc.greater(pc.utf8_length(counts["word"]), MAX_WORD_CHARS)
    if not pc.any(long).as_py():
        return counts, 0
    parts: Counter[str] = Counter()
    too_long = 0
    for word, count in zip(
        *(counts.filter(long)[name].to_pylist() for name in WORD_COUNTS.names), strict=True
    ):
        if lacks_spaces(word):
            for stretch in stretches(word):
                parts[stretch] += count
        else:
            too_long += 1
    return sum_word_counts([counts.filter(pc.invert(long)), counts_table(parts)]), too_long


def _covered(words: pa.Table, alphabet: Alphabet) -> pa.Table:
    """The words that the alphabet covers."""
    batches = (
        batch.filter(pa.array(alphabet.covers(batch["word"]))) for batch in words.to_batches(_WORDS_AT_ONCE)
    )
    return pa.Table.from_batches(batches, schema=WORD_COUNTS)


def _drop_least_used(words: pa.Table, alphabet: list[str], merged: list[str], surplus: int) -> list[str]:
    """``merged`` without the ``surplus`` least used subwords. Of equal ones, later ones go first."""
    numbers = {piece: number for number, piece in enumerate(merged)}
    numbers |= {piece: len(merged) for piece in alphabet}
    encoder = WordEncoder(numbers, len(merged))
    uses = np.zeros(len(merged) + 1, np.int64)
    for batch in words.to_batches(_WORDS_AT_ONCE):
        ids, offsets = encoder.encode(batch["word"])
        np.add.at(uses, ids, np.repeat(batch["count"].to_numpy(), np.diff(offsets)))
    ranked = np.lexsort((-np.arange(len(merged)), uses[: len(merged)]))
    dropped = set(ranked[:surplus].tolist())
    return [piece for number, piece in enumerate(merged) if number not in dropped]
