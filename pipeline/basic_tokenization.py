"""BERT's basic tokenization over whole Arrow arrays: clean, fold case, and cut text into words.

What every code point becomes is asked once of the `tokenizers` library's own BertNormalizer and
BertPreTokenizer, which know no context beyond the single character once text is in NFC. The answers
are tables, and the text of a whole batch goes through them in NumPy. So the words are those of
BertTokenizerFast by construction, for whatever Unicode version that library has.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, normalizers, pre_tokenizers

from schemas.scripts import codes_without_spaces

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
# uint8 for text that is all ASCII, else uint32.
Codes = npt.NDArray[Any]
Accents = Literal["keep", "strip", "strip_letters"]

# Text that is worked on at a time: small enough for the arrays to stay in the caches.
CHUNK_BYTES = 1 << 21

_LETTER, _ALONE, _SPACE, _DROPPED, _LONGER = range(5)
# Beside the class: NFC may put the character in another order, may change it or what stands before it.
_COMBINES, _COMPOSES = 0x40, 0x80
_CLASS_BITS = 0x3F
_CODE_POINTS = 0x110000
_CODE_BITS, _CODE_MASK = 21, 0x1FFFFF
# Nothing is folded to this Runic letter, and it is folded to nothing else: it parts the answers.
_SENTINEL = "\u16a0"
# Planes 4 to 13 have no characters; they behave like letters.
_PLANES = (0, 1, 2, 3, 14, 15, 16)
# Combining diacritical marks for Latin, Greek and Cyrillic; other scripts' marks are letters.
_LETTER_MARKS = "[\u0300-\u036f\u0483-\u0487\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_SURROGATES = re.compile("[\ud800-\udfff]")


def default_accents(cased: bool) -> Accents:
    """What BERT does: accents stay in cased text and go together with the case in uncased text."""
    return "keep" if cased else "strip"


def normalizer_for(cased: bool, accents: Accents) -> Any:
    """The `tokenizers` normalizer of these rules, as it is written into tokenizer.json.

    ``strip`` drops every non-spacing mark, as BERT's uncased models do, which costs Devanagari, Thai
    and others their vowel signs; ``strip_letters`` drops the diacritics of Latin, Greek and Cyrillic
    only.
    """
    if accents != "strip_letters":
        bert = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=accents == "strip", lowercase=not cased
        )
        return normalizers.Sequence([normalizers.NFC(), bert])
    bert = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    steps = [normalizers.NFC(), bert, normalizers.NFD()]
    steps += [normalizers.Replace(Regex(_LETTER_MARKS), ""), normalizers.NFC()]
    return normalizers.Sequence(steps if cased else [*steps, normalizers.Lowercase()])


@dataclass(frozen=True)
class CharacterTable:
    """What each code point becomes: its class with hints for NFC, and the character it is folded to."""

    kind: npt.NDArray[np.uint8]
    # None when every character stays as it is. What becomes several letters, of class _LONGER, is the number
    # of its entry beyond the code points: how many letters, and the first of them, the second and so on.
    folded: npt.NDArray[np.uint32] | None
    longer_counts: npt.NDArray[np.uint8]
    longer_letters: list[npt.NDArray[np.uint32]]

    def apply(self, text: str, codes: Codes, bounds: Int64) -> tuple[Codes, npt.NDArray[np.uint8], Int64]:
        """What a text becomes: its characters, their classes, and where its sentences then part."""
        places = codes.astype(np.intp)
        kinds = self.kind.take(places, mode="clip")
        hints = kinds >= _COMBINES
        if hints.any():
            suspects = kinds >= _COMPOSES
            suspects[1:] |= hints[1:] & hints[:-1]
            changing = _changing(text, codes, np.flatnonzero(suspects))
            if len(changing):
                codes, bounds = _composed(text, bounds, changing)
                places = codes.astype(np.intp)
                kinds = self.kind.take(places, mode="clip")
            kinds &= _CLASS_BITS
        if self.folded is not None:
            codes = self.folded.take(places, mode="clip")
            if self.longer_letters and (kinds == _LONGER).any():
                codes, kinds, bounds = self._expand(codes, kinds, bounds)
        dropped = kinds == _DROPPED
        if dropped.any():
            bounds = bounds - np.searchsorted(np.flatnonzero(dropped), bounds)
            codes, kinds = np.compress(~dropped, codes), np.compress(~dropped, kinds)
        return codes, kinds, bounds

    def _expand(
        self, codes: Codes, kinds: npt.NDArray[np.uint8], bounds: Int64
    ) -> tuple[Codes, npt.NDArray[np.uint8], Int64]:
        """Puts the several letters of the _LONGER characters in their place."""
        at = np.flatnonzero(kinds == _LONGER)
        entries = codes[at].astype(np.int64) - _CODE_POINTS
        counts = self.longer_counts.take(entries)
        # Where each character begins then, and the last one ends.
        begins = np.ones(len(codes) + 1, np.int64)
        begins[0] = 0
        begins[at + 1] = counts
        np.cumsum(begins, out=begins)
        out, spread = np.empty(begins[-1], codes.dtype), np.full(begins[-1], _LETTER, np.uint8)
        out[begins[:-1]], spread[begins[:-1]] = codes, kinds
        firsts = begins[at]
        spread[firsts] = _LETTER
        for number, letters in enumerate(self.longer_letters):
            if number > 1:
                within = counts > number
                firsts, entries, counts = firsts[within], entries[within], counts[within]
            out[firsts + number] = letters.take(entries)
        return out, spread, begins[bounds]


def _probe_codes() -> list[int]:
    return [
        code
        for plane in _PLANES
        for code in range(plane << 16, (plane + 1) << 16)
        if not 0xD800 <= code < 0xE000 and code != ord(_SENTINEL)
    ]


def _isolated(characters: Iterable[str]) -> set[str]:
    """Those of the characters that BERT's pre-tokenizer makes tokens of their own."""
    text = "a" + "a".join(sorted(set(characters) - {"a"}))
    pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    return {piece for piece, _ in pieces if len(piece) == 1 and piece != "a"}


@cache
def character_table(cased: bool, accents: Accents) -> CharacterTable:
    """The table of these rules. Takes about half a second; made once in a process."""
    codes = _probe_codes()
    joined = _SENTINEL + _SENTINEL.join(map(chr, codes))
    spaced = normalizer_for(cased, accents).normalize_str(joined).split(_SENTINEL)[1:]
    texts = [text.strip(" ") for text in spaced]
    alone = _isolated(text for text in texts if len(text) == 1)
    kind = np.zeros(_CODE_POINTS, np.uint8)
    folded = np.arange(_CODE_POINTS, dtype=np.uint32)
    longer: list[str] = []
    for code, given, text in zip(codes, spaced, texts, strict=True):
        if not text:
            kind[code] = _SPACE if given else _DROPPED
        elif len(text) > 1:
            kind[code] = _LONGER
            folded[code] = _CODE_POINTS + len(longer)
            longer.append(text)
        else:
            folded[code] = ord(text)
            kind[code] = _ALONE if given != text or text in alone else _LETTER
    kind |= _composition_hints()
    stays = bool((folded == np.arange(_CODE_POINTS)).all())
    letters = [
        np.array([ord(text[place : place + 1] or "\0") for text in longer], np.uint32)
        for place in range(max(map(len, longer), default=0))
    ]
    counts = np.array(list(map(len, longer)), np.uint8)
    return CharacterTable(kind, None if stays else folded, counts, letters)


@dataclass(frozen=True)
class Words:
    """The words of a run of sentences, in order.

    Word i is the single character ``chars[...]`` where ``is_char[i]``, else the entry of
    ``dictionary`` that the next of ``indices`` names. Sentence s has the words
    ``sentence_offsets[s]`` to ``sentence_offsets[s + 1]``.
    """

    is_char: npt.NDArray[np.bool_]
    chars: Codes
    indices: Int32
    dictionary: pa.StringArray
    sentence_offsets: Int64


def as_array(sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> pa.Array:
    """The sentences as one Arrow array of strings; lone surrogates become U+FFFD."""
    if isinstance(sentences, pa.ChunkedArray):
        sentences = sentences.combine_chunks()
    if isinstance(sentences, pa.Array):
        return sentences
    clean = [_SURROGATES.sub("\ufffd", sentence) for sentence in sentences]
    return pa.array(clean, pa.large_string())


def chunks(sentences: pa.Array, size: int = CHUNK_BYTES) -> Iterator[pa.Array]:
    """Slices of about ``size`` bytes; a longer sentence makes a slice of its own."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(sentences), 0).to_numpy(), dtype=np.int64)
    begin = 0
    while begin < len(sentences):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + size, side="right")))
        yield sentences[begin:end]
        begin = end


@dataclass(frozen=True)
class Spans:
    """Text cut into words in place: what `split_words` gathers and shingling hashes."""

    codes: Codes
    # Which characters belong to words of several; the others stand alone or are spaces.
    letters: npt.NDArray[np.bool_]
    # Where each word begins, and which of the words are single characters by themselves.
    starts: Int64
    is_char: npt.NDArray[np.bool_]
    sentence_offsets: Int64


def word_spans(sentences: pa.Array, table: CharacterTable) -> Spans:
    """Where the words of a slice of sentences are; nulls count as empty sentences."""
    codes, kinds, bounds = table.apply(*_code_points(sentences))
    letters = kinds == _LETTER
    opens = letters.copy()
    np.greater(letters[1:], letters[:-1], out=opens[1:])
    begins = bounds[:-1][bounds[:-1] < len(codes)]
    opens[begins] = letters[begins]
    opens |= kinds == _ALONE
    starts = np.flatnonzero(opens)
    offsets = np.searchsorted(starts, bounds).astype(np.int64)
    return Spans(codes, letters, starts, kinds.take(starts) == _ALONE, offsets)


def split_words(sentences: pa.Array, table: CharacterTable) -> Words:
    """Cuts a slice of sentences into words; nulls count as empty sentences."""
    spans = word_spans(sentences, table)
    # Where each run of letters begins among the letters alone.
    runs = spans.starts[~spans.is_char]
    before_runs = np.cumsum(spans.letters, dtype=np.int32)[runs] - 1
    encoded = _word_array(np.compress(spans.letters, spans.codes), before_runs).dictionary_encode()
    return Words(
        is_char=spans.is_char,
        chars=spans.codes[spans.starts[spans.is_char]],
        indices=encoded.indices.to_numpy(),
        dictionary=encoded.dictionary,
        sentence_offsets=spans.sentence_offsets,
    )


@cache
def prose_table() -> CharacterTable:
    """For comparing texts: lower case, no diacritics, no punctuation; signs of scripts without
    spaces between words are words of their own. What is no part of a word is folded to NUL.
    """
    base = character_table(False, "strip_letters")
    classes, hints = base.kind & _CLASS_BITS, base.kind & (_COMBINES | _COMPOSES)
    for code in np.flatnonzero(classes == _ALONE).tolist():
        if unicodedata.category(chr(code))[0] not in "LN":
            classes[code] = _SPACE
    unspaced = codes_without_spaces()
    classes[unspaced] = np.where(classes[unspaced] == _LETTER, _ALONE, classes[unspaced])
    kind = (classes | hints).astype(np.uint8)
    folded = np.arange(_CODE_POINTS, dtype=np.uint32) if base.folded is None else base.folded
    folded = np.where(classes == _SPACE, np.uint32(0), folded)
    return CharacterTable(kind, folded, base.longer_counts, base.longer_letters)


def _code_points(sentences: pa.Array) -> tuple[str, Codes, Int64]:
    """The text of all sentences, its code points, and the n + 1 places where the sentences part."""
    sentences = pc.fill_null(sentences, "") if sentences.null_count else sentences
    text = _joined(sentences)
    plain = text.isascii()
    lengths = pc.binary_length(sentences) if plain else pc.utf8_length(sentences)
    bounds = np.zeros(len(sentences) + 1, np.int64)
    np.cumsum(lengths.to_numpy(), out=bounds[1:])
    if plain:
        return text, np.frombuffer(text.encode("ascii"), np.uint8), bounds
    return text, np.frombuffer(text.encode("utf-32-le"), np.uint32), bounds


def _changing(text: str, codes: Codes, suspects: Int64) -> Int64:
    """Those of the suspect places where the text is not in NFC, or may not be.

    Whether it is depends on what stands between a place and the last starter before it. That is mostly
    one character or two, so the distinct pairs are asked, then triples; longer runs of marks one by one.
    """
    changing = [suspects[:0]]
    for length in (2, 3):
        packed = codes[suspects].astype(np.int64)
        for back in range(1, length):
            before = np.where(suspects >= back, codes[suspects - back], ord(" ")).astype(np.int64)
            packed |= before << (_CODE_BITS * back)
        distinct, which = np.unique(packed, return_inverse=True)
        answers = [_run_changes(run, length) for run in distinct.tolist()]
        changing.append(suspects[np.array([answer is True for answer in answers], bool)[which]])
        suspects = suspects[np.array([answer is None for answer in answers], bool)[which]]
    runs = [place for place in suspects.tolist() if not _is_composed(text, place)]
    return np.concatenate((*changing, np.array(runs, np.int64)))


@cache
def _run_changes(packed: int, length: int) -> bool | None:
    """Whether NFC changes these characters; None when they do not reach back to a starter."""
    codes = [packed >> (_CODE_BITS * back) & _CODE_MASK for back in reversed(range(length))]
    if unicodedata.combining(chr(codes[0])):
        return None
    return not unicodedata.is_normalized("NFC", "".join(map(chr, codes)))


def _is_composed(text: str, place: int) -> bool:
    begin = place
    while begin and unicodedata.combining(text[begin - 1]):
        begin -= 1
    return unicodedata.is_normalized("NFC", text[max(begin - 1, 0) : place + 1])


def _composed(text: str, bounds: Int64, places: Int64) -> tuple[Codes, Int64]:
    """The text in NFC; only the sentences of these places are looked at.

    `unicodedata.is_normalized` on the whole text would be much slower where it must look twice.
    """
    lengths = np.diff(bounds)
    parts, done = [], 0
    for number in np.unique(np.searchsorted(bounds, places, side="right") - 1).tolist():
        begin, end = int(bounds[number]), int(bounds[number + 1])
        composed = unicodedata.normalize("NFC", text[begin:end])
        lengths[number] = len(composed)
        parts += [text[done:begin], composed]
        done = end
    whole = "".join([*parts, text[done:]])
    moved = np.concatenate(([0], np.cumsum(lengths)))
    return np.frombuffer(whole.encode("utf-32-le"), np.uint32), moved


@cache
def _composition_hints() -> npt.NDArray[np.uint8]:
    """Which code points NFC may change, alone or after another, or may put in another order."""
    hints = np.zeros(_CODE_POINTS, np.uint8)
    # The vowels and final consonants of Hangul compose by arithmetic, not by table.
    hints[0x1161:0x1176] = hints[0x11A8:0x11C3] = _COMPOSES
    for code in range(0x30000):
        char = chr(code)
        parts = unicodedata.decomposition(char).split()
        if unicodedata.combining(char) and not hints[code]:
            hints[code] = _COMBINES
        if not parts or parts[0].startswith("<"):
            continue
        if len(parts) == 2:
            hints[int(parts[1], 16)] = _COMPOSES
        if unicodedata.normalize("NFC", char) != char:
            hints[code] = _COMPOSES
    return hints


def _joined(sentences: pa.Array) -> str:
    if not len(sentences):
        return ""
    wide = pa.types.is_large_string(sentences.type)
    _, offsets, data = sentences.buffers()
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    begin, end = int(bounds[sentences.offset]), int(bounds[sentences.offset + len(sentences)])
    return data.slice(begin, end - begin).to_pybytes().decode() if end > begin else ""


def _word_array(letters: Codes, starts: Int32) -> pa.StringArray:
    """The runs of ``letters`` that begin at ``starts`` and follow each other without a gap."""
    if letters.dtype == np.uint8:
        raw = letters.tobytes()
        offsets = np.append(starts, len(letters)).astype(np.int32)
    else:
        raw = letters.tobytes().decode("utf-32-le").encode()
        # Bytes 10xxxxxx go on with a character, all others begin one.
        begins = np.flatnonzero((np.frombuffer(raw, np.uint8) & 0xC0) != 0x80)
        offsets = np.append(begins[starts], len(raw)).astype(np.int32)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(raw))


def words_of(text: str, table: CharacterTable) -> list[str]:
    """The words of one text; for looking at, not for bulk."""
    words = split_words(as_array([text]), table)
    chars, entries = iter(words.chars.tolist()), iter(words.indices.tolist())
    names: Sequence[str] = words.dictionary.to_pylist()
    return [chr(next(chars)) if char else names[next(entries)] for char in words.is_char.tolist()]
