"""Applies the WordPiece rule, which repeatedly takes the longest subword from the left, to many words.

All words walk a trie of the subwords together (`piece_trie`), one character per step. A word that cannot
continue emits the longest subword on its path and restarts after it, from the root of the ``##`` subwords. A
step is a few array operations for any number of words, and the number of steps is about the length of the
longest word. Only words that are too long need a Python loop.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.text import scripts
from pipeline.wordpiece.piece_trie import END, PieceTrie
from schemas.arrays import I32, I64
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION

# As in `tokenizers` (google-research/bert has 200).
MAX_WORD_CHARS = 100
# Separates the words of a text. The basic tokenizer removes it, so no word contains it.
_NUL = "\0"


class WordEncoder:
    """Splits words of the basic tokenizer into numbers of subwords."""

    def __init__(self, numbers: Mapping[str, int], unknown: int) -> None:
        self._unknown = unknown
        inner = {
            piece[len(CONTINUATION) :]: number
            for piece, number in numbers.items()
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        }
        self._trie = PieceTrie([numbers, inner])

    def encode(self, words: pa.StringArray | Sequence[str]) -> tuple[I32, I64]:
        """The concatenated numbers of the words' subwords, and the offsets of the words.

        A word that cannot be split, or with more than MAX_WORD_CHARS characters, is a single [UNK]. In a
        script without spaces between words, a long word is first cut into stretches. Raises ValueError for a
        word with a NUL.
        """
        text = _joined(words)
        codes, begins, ends = self._places(text)
        if len(ends) != len(words):
            raise ValueError("a word must not contain a NUL character")
        long = np.flatnonzero(ends - begins > MAX_WORD_CHARS)
        cut = _cut(text, begins[long].tolist(), ends[long].tolist())
        if not cut:
            return self._encode(codes, begins, ends)
        counts = np.ones(len(words), np.int64)
        parts, done = [], 0
        for begin, (end, replacements) in cut.items():
            counts[np.searchsorted(begins, begin)] = len(replacements)
            parts += [text[done:begin], _NUL.join(replacements)]
            done = end
        ids, offsets = self._encode(*self._places("".join([*parts, text[done:]])))
        return ids, offsets[np.concatenate(([0], np.cumsum(counts)))]

    def _places(self, text: str) -> tuple[I64, I64, I64]:
        """The numbers of the characters, the start of each word, and the position of its END."""
        codes = self._trie.codes.take(np.frombuffer(text.encode("utf-32-le"), np.uint32)).astype(np.int64)
        ends = np.flatnonzero(codes == END)
        return codes, np.concatenate((np.zeros(1, np.int64), ends + 1))[:-1], ends

    def _encode(self, codes: I64, begins: I64, ends: I64) -> tuple[I32, I64]:
        lengths = ends - begins
        unknown = lengths > MAX_WORD_CHARS
        pieces, failed = self._trie.walk(codes, begins[(lengths > 0) & ~unknown])
        unknown[np.searchsorted(ends, failed)] = True
        if unknown.any():
            pieces[np.repeat(unknown, lengths + 1)] = -1
            pieces[begins[unknown]] = self._unknown
        placed = pieces >= 0
        offsets = np.zeros(len(ends) + 1, np.int64)
        offsets[1:] = np.cumsum(placed)[ends]
        return np.compress(placed, pieces), offsets


def _joined(words: pa.StringArray | Sequence[str]) -> str:
    """The words with a NUL after each."""
    if not isinstance(words, pa.StringArray):
        return "".join([word + _NUL for word in words])
    if not len(words):
        return ""
    whole = pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), words)
    text: str = pc.binary_join(whole, _NUL)[0].as_py()
    return text + _NUL


def _cut(text: str, begins: list[int], ends: list[int]) -> dict[int, tuple[int, list[str]]]:
    """The long words to cut into stretches: start -> (end, stretches)."""
    out = {}
    for begin, end in zip(begins, ends, strict=True):
        word = text[begin:end]
        if lacks_spaces(word):
            out[begin] = (end, stretches(word))
    return out


def stretches(word: str) -> list[str]:
    """The word in stretches of at most MAX_WORD_CHARS. No stretch starts with a combining mark.

    A run of only marks is an exception.
    """
    out = []
    while len(word) > MAX_WORD_CHARS:
        cut = MAX_WORD_CHARS
        while cut > MAX_WORD_CHARS // 2 and scripts.is_mark(word[cut]):
            cut -= 1
        if scripts.is_mark(word[cut]):
            cut = MAX_WORD_CHARS
        out.append(word[:cut])
        word = word[cut:]
    return [*out, word]
