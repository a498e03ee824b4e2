"""Trains a WordPiece vocabulary from word counts, to the same bytes on every machine.

Pieces are merged pair by pair, the most frequent pair first, as in byte-pair encoding. More pieces
than wanted are made; then every word is cut the way the tokenizer cuts it, and the pieces that this
needs least (the half-words that longer pieces were made of, mostly) are taken out again.

Nothing depends on the order of the counts, on hashing or on the number of workers: words are sorted,
pieces are numbered in order of making, and equal counts are settled by those numbers. Counts are
64-bit integers throughout.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.alphabet import VocabularyError, choose_alphabet
from pipeline.pair_merges import PairMerges
from pipeline.wordpiece import MAX_WORD_CHARS, WordEncoder, stretches
from schemas.scripts import lacks_spaces
from schemas.vocabulary import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

# Enough for every word of half a gigabyte of text in 160 languages. A letter takes about 50 bytes at work.
MAX_WORDS = 3_500_000
MAX_LETTERS = 24_000_000
# How many merged pieces are made for one that stays. More (1.15) makes the whole a little shorter and rare
# scripts longer: at 1.06 no language of benchmarks/results/vocabulary.md is worse than with `tokenizers`.
_SURPLUS = 1.06
_COUNT_LIMIT = 1 << 62
# Words that are worked on at a time, for bounded memory.
_WORDS_AT_ONCE = 100_000


@dataclass(frozen=True)
class Training:
    """A trained vocabulary and what was left out on the way."""

    pieces: list[str]
    words: int
    # Distinct words left out because there were too many, and their share of all counts.
    words_pruned: int
    pruned_share: float
    words_too_long: int
    alphabet: int
    # Distinct characters that are not in the alphabet, and their share of all characters.
    characters_left_out: int
    left_out_share: float


def train_wordpiece(
    counts: Mapping[str, int],
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
) -> list[str]:
    """The pieces of a vocabulary of exactly ``size``: special tokens, unused slots, alphabet, merges.

    Raises VocabularyError when that many pieces cannot be made, the alphabets do not fit, or memory is short.
    """
    return train(counts, size, unused, max_words=max_words, max_letters=max_letters).pieces


def train(
    counts: Mapping[str, int],
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
    surplus: float = _SURPLUS,
) -> Training:
    """As `train_wordpiece`, with the account of what was left out."""
    try:
        return _train(counts, size, unused, max_words, max_letters, surplus)
    except MemoryError as error:
        # Never fewer words than asked for without a word: the vocabulary would depend on the machine.
        raise VocabularyError(
            f"vocabulary.max_letters {max_letters}: not enough memory for so many letters of distinct words "
            "(some 50 bytes each); lower it or give the task more memory"
        ) from error


def _train(
    counts: Mapping[str, int], size: int, unused: int, max_words: int, max_letters: int, surplus: float
) -> Training:
    opening = [*SPECIAL_TOKENS, *(f"[unused{number}]" for number in range(1, unused + 1))]
    free = size - len(opening)
    selected = _select_words(counts, max_words, max_letters)
    alphabet = choose_alphabet(counts.items(), free, size)
    usable = [(word, count) for word, count in selected.words if alphabet.covers(word)]
    wanted = free - len(alphabet.pieces)
    merges = PairMerges(usable, alphabet.pieces)
    merges.run(int(wanted * surplus))
    made = merges.made()
    # Where the words are too few to fill the rest with merges, rarer characters do.
    alphabet = alphabet.widened(wanted - len(made))
    wanted = free - len(alphabet.pieces)
    if len(made) < wanted:
        most = len(opening) + len(alphabet.pieces) + len(made)
        raise VocabularyError(
            f"vocabulary.size {size}: these {len(usable)} words give {most} pieces at most; "
            f"lower the size or give more text"
        )
    kept = _drop_least_used(usable, alphabet.pieces, made, len(made) - wanted)
    training = Training(
        pieces=[*opening, *alphabet.pieces, *kept],
        words=len(usable),
        words_pruned=selected.pruned,
        pruned_share=selected.pruned_share,
        words_too_long=selected.too_long,
        alphabet=len(alphabet.pieces),
        characters_left_out=len(alphabet.rest),
        left_out_share=alphabet.left_out_share,
    )
    if alphabet.rest:
        message = "vocabulary: %d rarest characters have no piece (%.4f%% of all characters)"
        logger.warning(message, len(alphabet.rest), 100 * alphabet.left_out_share)
    logger.info("vocabulary of %d pieces from %d words", size, training.words)
    return training


# ---------------------------------------------------------------- words


@dataclass(frozen=True)
class _Selection:
    words: list[tuple[str, int]]
    pruned: int
    pruned_share: float
    too_long: int


def _select_words(counts: Mapping[str, int], max_words: int, max_letters: int) -> _Selection:
    """The most frequent words within the limits, most frequent first; equal counts by a hash."""
    total = sum(counts.values())
    if total >= _COUNT_LIMIT:
        raise VocabularyError(f"word counts add up to {total}, over 2^62")
    usable, too_long = counts, 0
    if any(len(word) > MAX_WORD_CHARS for word in counts):
        usable, too_long = _cut_long_words(counts)
    names = list(usable)
    weights = np.fromiter(usable.values(), np.int64, len(names))
    order = _by_frequency(names, weights)
    letters = np.cumsum(np.fromiter(map(len, names), np.int64, len(names))[order])
    keep = min(max_words, int(np.searchsorted(letters, max_letters, side="right")))
    pruned = len(names) - keep
    share = int(weights[order[keep:]].sum()) / total if total else 0.0
    if pruned:
        message = "vocabulary: %d rarest of %d distinct words left out (%.3f%% of all words)"
        logger.warning(message, pruned, len(names), 100 * share)
    kept = order[:keep]
    words = list(zip(map(names.__getitem__, kept.tolist()), weights[kept].tolist(), strict=True))
    return _Selection(words, pruned, share, too_long)


def _by_frequency(names: list[str], weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The order from the most frequent word on; equal counts by a hash, equal hashes by the words.

    In arrays: a tuple to sort by for each of millions of words would be most of a training's memory.
    """
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in names), np.int64, len(names))
    order = np.lexsort((hashes, -weights))
    alike = (np.diff(weights[order]) == 0) & (np.diff(hashes[order]) == 0)
    done = 0
    for place in np.flatnonzero(alike).tolist():
        if place < done:
            continue
        end = place + 2
        while end < len(order) and alike[end - 1]:
            end += 1
        order[place:end] = sorted(order[place:end].tolist(), key=names.__getitem__)
        done = end
    return order


def _cut_long_words(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Long words cut as the tokenizer cuts them, and the number of those that it makes [UNK]."""
    out: Counter[str] = Counter()
    too_long = 0
    for word, count in counts.items():
        if len(word) <= MAX_WORD_CHARS:
            out[word] += count
        elif lacks_spaces(word):
            for stretch in stretches(word):
                out[stretch] += count
        else:
            too_long += 1
    return out, too_long


def _drop_least_used(
    words: list[tuple[str, int]], alphabet: list[str], made: list[str], surplus: int
) -> list[str]:
    """``made`` without the ``surplus`` pieces that cutting the words uses least, later ones first."""
    numbers = {piece: number for number, piece in enumerate(made)}
    numbers |= {piece: len(made) for piece in alphabet}
    encoder = WordEncoder(numbers, len(made))
    uses = np.zeros(len(made) + 1, np.int64)
    for begin in range(0, len(words), _WORDS_AT_ONCE):
        part = words[begin : begin + _WORDS_AT_ONCE]
        ids, offsets = encoder.encode([word for word, _ in part])
        counts = np.fromiter((count for _, count in part), np.int64, len(part))
        np.add.at(uses, ids, np.repeat(counts, np.diff(offsets)))
    ranked = np.lexsort((-np.arange(len(made)), uses[: len(made)]))
    dropped = set(ranked[:surplus].tolist())
    return [piece for number, piece in enumerate(made) if number not in dropped]
