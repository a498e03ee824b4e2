"""The WordPiece rule, the longest piece from the left again and again, over many words at once.

All words walk a trie of the pieces in step (`piece_trie`), one character each a step; a word that
cannot go on gives the longest piece it has passed and starts again behind it, from the root of the
``##`` pieces. So the cost is a few array operations a step, however many words there are, and the
number of steps that of the characters of the longest word, about. No word is seen by Python itself
unless it is too long.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import scripts
from pipeline.wordpiece.piece_trie import END, PieceTrie
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# As in `tokenizers` (google-research/bert has 200).
MAX_WORD_CHARS = 100
# Parts the words of a text; the basic tokenizer drops it, so no word has it.
_NUL = "\0"


class WordEncoder:
    """Cuts words of the basic tokenizer into pieces; knows a piece by its number."""

    def __init__(self, numbers: Mapping[str, int], unknown: int) -> None:
        self._unknown = unknown
        inner = {
            piece[len(CONTINUATION) :]: number
            for piece, number in numbers.items()
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        }
        self._trie = PieceTrie([numbers, inner])

    def encode(self, words: pa.StringArray | Sequence[str]) -> tuple[Int32, Int64]:
        """The numbers of the words' pieces one after another, and the offsets that part the words.

        A word with a missing piece, or of more than MAX_WORD_CHARS characters, is [UNK] alone; but
        in a script without spaces between words a long word is cut into stretches first. Raises
        ValueError for a word with a NUL in it.
        """
        text = _joined(words)
        codes, begins, ends = self._places(text)
        if len(ends) != len(words):
            raise ValueError("a word of the basic tokenizer has no NUL character in it")
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

    def _places(self, text: str) -> tuple[Int64, Int64, Int64]:
        """The numbers of the characters, and where each word begins and its END stands."""
        codes = self._trie.codes.take(np.frombuffer(text.encode("utf-32-le"), np.uint32)).astype(np.int64)
        ends = np.flatnonzero(codes == END)
        return codes, np.concatenate((np.zeros(1, np.int64), ends + 1))[:-1], ends

    def _encode(self, codes: Int64, begins: Int64, ends: Int64) -> tuple[Int32, Int64]:
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
    """The words with a NUL behind each."""
    if not isinstance(words, pa.StringArray):
        return "".join([word + _NUL for word in words])
    if not len(words):
        return ""
    whole = pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), words)
    text: str = pc.binary_join(whole, _NUL)[0].as_py()
    return text + _NUL


def _cut(text: str, begins: list[int], ends: list[int]) -> dict[int, tuple[int, list[str]]]:
    """Of the long words those that are cut into stretches: their beginning, their end, the stretches."""
    out = {}
    for begin, end in zip(begins, ends, strict=True):
        word = text[begin:end]
        if lacks_spaces(word):
            out[begin] = (end, stretches(word))
    return out


def stretches(word: str) -> list[str]:
    """The word in stretches of at most MAX_WORD_CHARS, none of which begins with a combining mark.

    A run of marks alone is cut all the same.
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
