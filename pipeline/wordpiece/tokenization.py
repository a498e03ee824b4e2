"""Tokenizes Arrow batches with WordPiece, to the ids of BertTokenizerFast, many times faster.

NumPy splits a batch into words (`basic_tokenization`). A table has the ids of single-character words. Arrow
dictionary-encodes the others, and `word_encoder` splits all distinct words into subwords together. One NumPy
gather makes the flat ids. There is no cache between batches, because splitting a word is as fast as looking
it up.

The ids differ from those of BertTokenizerFast in three deliberate ways:

- ``[MASK]`` and other special tokens in a text are plain text. The only special id in the result is that of
  [UNK].
- A word of more than MAX_WORD_CHARS characters in a script without spaces between words is cut into stretches
  of at most that length. Other long words are one [UNK].
- Text is normalized to NFC first, so an accent typed as a separate character gives the same ids.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.wordpiece.basic_tokenization import Words, as_array, chunks, split_words
from pipeline.wordpiece.character_table import Accents, character_table, default_accents
from pipeline.wordpiece.vocabulary import Vocabulary
from pipeline.wordpiece.word_encoder import WordEncoder
from schemas.arrays import I32, I64

# Number of words whose ids are gathered at a time. The arrays then stay in the CPU caches.
_WORDS_AT_ONCE = 1 << 15


class WordPieceTokenizer:
    """Encodes text with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, *, accents: Accents | None = None) -> None:
        self.vocabulary = vocabulary
        accents = accents or vocabulary.accents or default_accents(vocabulary.cased)
        self._table = character_table(vocabulary.cased, accents)
        special = vocabulary.special_ids
        usable = {piece: number for piece, number in vocabulary.index.items() if number not in special}
        self._words = WordEncoder(usable, vocabulary.unknown_id)
        self._char_ids = np.full(0x110000, vocabulary.unknown_id, np.int32)
        for piece, number in usable.items():
            if len(piece) == 1:
                self._char_ids[ord(piece)] = number

    def encode_batch(self, sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> tuple[I32, I64]:
        """The concatenated ids of all n sentences, and the n + 1 offsets of the sentences.

        A null is an empty sentence. Adds no [CLS] or [SEP].
        """
        flat: list[I32] = [np.zeros(0, np.int32)]
        offsets: list[I64] = [np.zeros(1, np.int64)]
        for part in chunks(as_array(sentences)):
            ids, ends = self._encode_chunk(split_words(part, self._table))
            flat.append(ids)
            offsets.append(ends[1:] + offsets[-1][-1])
        return np.concatenate(flat), np.concatenate(offsets)

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without [CLS] and [SEP]."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def tokenize(self, text: str) -> list[str]:
        """The subwords of one text."""
        return [self.vocabulary.pieces[number] for number in self.encode(text)]

    def _encode_chunk(self, words: Words) -> tuple[I32, I64]:
        """The ids of a slice, and the offsets of its sentences."""
        pool, offsets = self._words.encode(words.dictionary)
        # The index of each word in the pool. Single characters have that of the previous word, for now.
        distinct = np.append(words.indices, np.int32(len(words.dictionary)))
        distinct = distinct.take(np.cumsum(~words.is_char) - 1, mode="clip")
        begins, lengths = offsets.take(distinct), np.diff(offsets, append=offsets[-1]).take(distinct)
        if len(words.chars):
            # Single characters follow the distinct words in the pool.
            places = np.flatnonzero(words.is_char)
            begins[places] = np.arange(len(pool), len(pool) + len(places))
            lengths[places] = 1
            pool = np.concatenate((pool, self._char_ids.take(words.chars)))
        ends = np.zeros(len(begins) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        flat = np.empty(ends[-1], np.int32)
        begins -= ends[:-1]
        numbers = np.arange(ends[-1])
        for first in range(0, len(begins), _WORDS_AT_ONCE):
            some = slice(first, first + _WORDS_AT_ONCE)
            places = np.repeat(begins[some], lengths[some])
            ids = slice(ends[first], ends[first] + len(places))
            places += numbers[ids]
            pool.take(places, out=flat[ids], mode="clip")
        return flat, ends.take(words.sentence_offsets)
