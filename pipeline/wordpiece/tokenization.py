"""WordPiece over Arrow batches: the ids of BertTokenizerFast, many times faster.

A batch is cut into words in NumPy (`basic_tokenization`). Single-character words are looked up in a
table; the others are dictionary-encoded by Arrow, and the distinct ones cut into pieces all at once
(`word_encoder`). One NumPy gather makes the flat ids. Nothing is kept from one batch to the next: cutting
a word takes no longer than looking it up among those of earlier batches would.

The ids differ from BertTokenizerFast's in three ways, on purpose:

- ``[MASK]`` and its like in a text are plain text: no special id but that of [UNK] ever comes out.
- A word of more than MAX_WORD_CHARS characters in a script without spaces between words is cut into
  stretches of at most that length, instead of being one [UNK]. Other long words are one [UNK].
- Text is brought into NFC first, so that an accent typed as a character of its own gives the same ids.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.wordpiece.basic_tokenization import Int32, Words, as_array, chunks, split_words
from pipeline.wordpiece.character_table import Accents, character_table, default_accents
from pipeline.wordpiece.composition import Int64
from pipeline.wordpiece.vocabulary import Vocabulary
from pipeline.wordpiece.word_encoder import WordEncoder

# Words whose ids are gathered at a time: the arrays stay in the caches.
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

    def encode_batch(self, sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> tuple[Int32, Int64]:
        """The ids of all sentences one after another, and the n + 1 offsets that part them.

        A null is an empty sentence. No [CLS] or [SEP] is added.
        """
        flat: list[Int32] = [np.zeros(0, np.int32)]
        offsets: list[Int64] = [np.zeros(1, np.int64)]
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
        """The pieces of one text."""
        return [self.vocabulary.pieces[number] for number in self.encode(text)]

    def _encode_chunk(self, words: Words) -> tuple[Int32, Int64]:
        """The ids of a slice, and where each sentence begins and the last ends."""
        pool, offsets = self._words.encode(words.dictionary)
        # The distinct word of each word; characters by themselves have that of the word before them, for now.
        distinct = np.append(words.indices, np.int32(len(words.dictionary)))
        distinct = distinct.take(np.cumsum(~words.is_char) - 1, mode="clip")
        begins, lengths = offsets.take(distinct), np.diff(offsets, append=offsets[-1]).take(distinct)
        if len(words.chars):
            # They follow the distinct words in the pool.
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
