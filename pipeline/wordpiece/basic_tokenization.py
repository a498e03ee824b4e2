"""BERT's basic tokenization over whole Arrow arrays: clean, fold case, and split text into words.

NumPy looks up the text of a whole batch in the tables of `character_table`. These contain the results of the
`tokenizers` library, so the words equal those of BertTokenizerFast by construction, for the library's Unicode
version.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wordpiece.character_table import ALONE, LETTER, CharacterTable
from pipeline.wordpiece.composition import Codes
from schemas.arrays import I32, I64

# Bytes of text whose distinct words are encoded together.
CHUNK_BYTES = 1 << 21
# Bytes of text to split at a time. The arrays of 8 bytes per character then stay in the CPU caches.
SLICE_BYTES = 1 << 17

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Words:
    """The words of consecutive sentences, in order.

    If ``is_char[i]``, word i is the next item of ``chars``, otherwise the entry of ``dictionary`` at the next
    item of ``indices``. Sentence s has the words ``sentence_offsets[s]`` to ``sentence_offsets[s + 1]``.
    """

    is_char: npt.NDArray[np.bool_]
    chars: Codes
    indices: I32
    dictionary: pa.StringArray
    sentence_offsets: I64


def as_array(sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> pa.Array:
    """The sentences as one Arrow array of strings. Lone surrogates become U+FFFD."""
    if isinstance(sentences, pa.ChunkedArray):
        sentences = sentences.combine_chunks()
    if isinstance(sentences, pa.Array):
        return sentences
    clean = [_SURROGATES.sub("\ufffd", sentence) for sentence in sentences]
    return pa.array(clean, pa.large_string())


def chunks(sentences: pa.Array, size: int = CHUNK_BYTES) -> Iterator[pa.Array]:
    """Slices of about ``size`` bytes. A longer sentence gets its own slice."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(sentences), 0).to_numpy(), dtype=np.int64)
    begin = 0
    while begin < len(sentences):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield sentences[begin:end]
        begin = end


@dataclass(frozen=True)
class Spans:
    """Text with the positions of its words, for `split_words` and for shingling."""

    codes: Codes
    # Which characters are letters of words. The others are words by themselves or spaces.
    letters: npt.NDArray[np.bool_]
    # Where each word starts, and which words are single characters by themselves.
    starts: I64
    is_char: npt.NDArray[np.bool_]
    sentence_offsets: I64


def word_spans(sentences: pa.Array, table: CharacterTable) -> Spans:
    """The positions of the words in a slice of sentences. Nulls count as empty sentences."""
    codes, kinds, bounds = table.apply(*code_points(sentences))
    letters = kinds == LETTER
    opens = letters.copy()
    np.greater(letters[1:], letters[:-1], out=opens[1:])
    begins = bounds[:-1][bounds[:-1] < len(codes)]
    opens[begins] = letters[begins]
    opens |= kinds == ALONE
    starts = np.flatnonzero(opens)
    offsets = np.searchsorted(starts, bounds).astype(np.int64)
    return Spans(codes, letters, starts, kinds.take(starts) == ALONE, offsets)


def split_words(sentences: pa.Array, table: CharacterTable) -> Words:
    """Splits a slice of sentences into words. Nulls count as empty sentences."""
    raws: list[bytes] = []
    begins, offsets = list[I64](), list[I64]()
    is_char, chars = [np.zeros(0, bool)], [np.zeros(0, np.uint8)]
    for part in chunks(sentences, SLICE_BYTES):
        spans = word_spans(part, table)
        # The start of each run of letters among only the letters.
        runs = np.compress(~spans.is_char, spans.starts)
        before_runs = np.cumsum(spans.letters, dtype=np.int32).take(runs) - 1
        raw, begin = _raw_words(np.compress(spans.letters, spans.codes), before_runs)
        raws.append(raw)
        begins.append(begin)
        offsets.append(spans.sentence_offsets)
        is_char.append(spans.is_char)
        chars.append(spans.codes.take(np.compress(spans.is_char, spans.starts)))
    encoded = _word_array(raws, begins).dictionary_encode()
    return Words(
        is_char=np.concatenate(is_char),
        chars=np.concatenate(chars),
        indices=encoded.indices.to_numpy(),
        dictionary=encoded.dictionary,
        sentence_offsets=_strung(offsets),
    )


def _strung(offsets: Sequence[I64]) -> I64:
    """Converts the offsets of several parts, each from 0 to the part's size, to offsets into the whole."""
    ends = np.cumsum([0, *(part[-1] for part in offsets)])
    moved = [part[1:] + before for part, before in zip(offsets, ends[:-1], strict=True)]
    return np.concatenate((np.zeros(1, np.int64), *moved))


def code_points(sentences: pa.Array) -> tuple[str, Codes, I64]:
    """The text of all n sentences, its code points, and the n + 1 offsets of the sentences."""
    sentences = pc.fill_null(sentences, "") if sentences.null_count else sentences
    text = _joined(sentences)
    plain = text.isascii()
    lengths = pc.binary_length(sentences) if plain else pc.utf8_length(sentences)
    bounds = np.zeros(len(sentences) + 1, np.int64)
    np.cumsum(lengths.to_numpy(), out=bounds[1:])
    if plain:
        return text, np.frombuffer(text.encode("ascii"), np.uint8), bounds
    return text, np.frombuffer(text.encode("utf-32-le"), np.uint32), bounds


def _joined(sentences: pa.Array) -> str:
    if not len(sentences):
        return ""
    wide = pa.types.is_large_string(sentences.type)
    _, offsets, data = sentences.buffers()
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    begin, end = int(bounds[sentences.offset]), int(bounds[sentences.offset + len(sentences)])
    return str(memoryview(data)[begin:end], "utf-8") if end > begin else ""


def _raw_words(letters: Codes, starts: I32) -> tuple[bytes, I64]:
    """The runs of ``letters`` that start at ``starts`` as UTF-8, and the byte at which each starts."""
    if letters.dtype == np.uint8:
        return letters.tobytes(), starts.astype(np.int64)
    raw = letters.tobytes().decode("utf-32-le").encode()
    if len(raw) == len(letters):
        return raw, starts.astype(np.int64)
    # Bytes 10xxxxxx continue a character. All others start one.
    return raw, np.flatnonzero((np.frombuffer(raw, np.uint8) & 0xC0) != 0x80).take(starts)


def _word_array(raws: Sequence[bytes], begins: Sequence[I64]) -> pa.StringArray:
    """The words of several parts, without gaps between them."""
    ends = np.cumsum([0, *map(len, raws)])
    moved = [part + before for part, before in zip(begins, ends[:-1], strict=True)]
    offsets = np.concatenate((*moved, ends[-1:])).astype(np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(b"".join(raws)))


def words_of(text: str, table: CharacterTable) -> list[str]:
    """The words of one text. For inspection, not for bulk processing."""
    words = split_words(as_array([text]), table)
    chars, entries = iter(words.chars.tolist()), iter(words.indices.tolist())
    names: Sequence[str] = words.dictionary.to_pylist()
    return [chr(next(chars)) if char else names[next(entries)] for char in words.is_char.tolist()]
