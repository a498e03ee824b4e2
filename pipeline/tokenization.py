"""WordPiece over Arrow batches: the ids of BertTokenizerFast, many times faster.

A batch is cut into words in NumPy (`basic_tokenization`). Single-character words are looked up in a
table; the others are dictionary-encoded by Arrow, so that Python sees each distinct word of a batch
once and a memo answers for those seen before. One NumPy gather makes the flat ids.

The ids differ from BertTokenizerFast's in three ways, on purpose:

- ``[MASK]`` and its like in a text are plain text: no special id but that of [UNK] ever comes out.
- A word of more than MAX_WORD_CHARS characters in a script without spaces between words is cut into
  stretches of at most that length, instead of being one [UNK]. Other long words are one [UNK].
- Text is brought into NFC first, so that an accent typed as a character of its own gives the same ids.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.basic_tokenization import (
    Accents,
    Int32,
    Int64,
    Words,
    as_array,
    character_table,
    chunks,
    default_accents,
    split_words,
)
from pipeline.vocabulary import Vocabulary
from pipeline.wordpiece import WordEncoder

# The memo is emptied when it holds this many words or letters: about 150 MB at the most.
MEMO_WORDS = 1 << 19
MEMO_LETTERS = 1 << 24


class WordPieceTokenizer:
    """Encodes text with one vocabulary. Holds a bounded memo; not for use from several threads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        accents: Accents | None = None,
        memo_words: int = MEMO_WORDS,
        memo_letters: int = MEMO_LETTERS,
    ) -> None:
        self.vocabulary = vocabulary
        accents = accents or vocabulary.accents or default_accents(vocabulary.cased)
        self._table = character_table(vocabulary.cased, accents)
        special = vocabulary.special_ids
        usable = {piece: number for piece, number in vocabulary.index.items() if number not in special}
        encoder = WordEncoder(usable, vocabulary.unknown_id)
        self._memo = _Memo(encoder, len(vocabulary.pieces), memo_words, memo_letters)
        self._char_slots = np.full(0x110000, vocabulary.unknown_id, np.int32)
        for piece, number in usable.items():
            if len(piece) == 1:
                self._char_slots[ord(piece)] = number

    def encode_batch(self, sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> tuple[Int32, Int64]:
        """The ids of all sentences one after another, and the n + 1 offsets that part them.

        A null is an empty sentence. No [CLS] or [SEP] is added.
        """
        flat: list[Int32] = [np.zeros(0, np.int32)]
        offsets: list[Int64] = [np.zeros(1, np.int64)]
        for part in chunks(as_array(sentences)):
            ids, ends = self._encode_chunk(split_words(part, self._table))
            flat.append(ids)
            offsets.append(ends + offsets[-1][-1])
        return np.concatenate(flat), np.concatenate(offsets)

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without [CLS] and [SEP]."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def tokenize(self, text: str) -> list[str]:
        """The pieces of one text."""
        return [self.vocabulary.pieces[number] for number in self.encode(text)]

    def _encode_chunk(self, words: Words) -> tuple[Int32, Int64]:
        slots = np.empty(len(words.is_char), np.int32)
        slots[words.is_char] = self._char_slots[words.chars]
        of_entry = self._memo.slots(words.dictionary.to_pylist())
        slots[~words.is_char] = of_entry[words.indices]
        ids, ends = self._memo.gather(slots)
        return ids, ends[words.sentence_offsets[1:]]


class _Memo:
    """Word -> slot, slot -> ids. The first slots are the pieces of the vocabulary, one id each.

    When a limit is passed it is emptied before the next chunk; the ids never depend on it.
    """

    def __init__(self, words: WordEncoder, pieces: int, max_words: int, max_letters: int) -> None:
        self._words = words
        self._pieces = pieces
        self._max_words, self._max_letters = max_words, max_letters
        self._clear()

    def _clear(self) -> None:
        self._slot_of: dict[str, int] = {}
        self._letters = 0
        self._pool = np.arange(self._pieces, dtype=np.int32)
        self._begins = np.arange(self._pieces, dtype=np.int64)
        self._lengths = np.ones(self._pieces, np.int32)

    def __len__(self) -> int:
        return len(self._slot_of)

    def slots(self, words: list[str]) -> Int32:
        """The slot of each of the distinct ``words``."""
        if len(self._slot_of) > self._max_words or self._letters > self._max_letters:
            self._clear()
        known = self._slot_of
        found = [known.get(word, -1) for word in words]
        slots = np.array(found, np.int32)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            slots[missing] = self._add([words[index] for index in missing.tolist()])
        return slots

    def _add(self, words: list[str]) -> Int32:
        ids, offsets = self._words.encode(words)
        lengths = np.diff(offsets).astype(np.int32)
        several = lengths > 1
        # A word that is one piece needs no slot of its own.
        slots = np.empty(len(words), np.int32)
        slots[~several] = ids[offsets[:-1][~several]]
        slots[several] = np.arange(several.sum(), dtype=np.int32) + len(self._begins)
        self._begins = np.concatenate((self._begins, offsets[:-1][several] + len(self._pool)))
        self._lengths = np.concatenate((self._lengths, lengths[several]))
        self._pool = np.concatenate((self._pool, ids))
        self._slot_of.update(zip(words, slots.tolist(), strict=True))
        self._letters += sum(map(len, words))
        return slots

    def gather(self, slots: Int32) -> tuple[Int32, Int64]:
        """The ids of the slots one after another, and where each slot's ids begin and the last end."""
        lengths = self._lengths[slots]
        ends = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        if ends[-1] == len(slots):
            return self._pool[self._begins[slots]], ends
        places = np.repeat(self._begins[slots] - ends[:-1], lengths)
        places += np.arange(ends[-1])
        return self._pool[places], ends
