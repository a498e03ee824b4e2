"""The WordPiece rule, the longest piece from the left again and again, over many words at once.

The pieces make a trie whose edges lie in a hash table of NumPy arrays. All words walk it in step, one
character each a step; a word that cannot go on gives the longest piece it has passed and starts again
behind it, from the root of the ``##`` pieces. So the cost is a few array operations a step, however
many words there are, and the number of steps that of the characters of the longest word, about.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pipeline import scripts
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# As in `tokenizers` (google-research/bert has 200).
MAX_WORD_CHARS = 100

_OPENING_ROOT, _INNER_ROOT = 0, 1
_NONE = -1
_CODE_BITS = np.int64(21)
_HASH = np.uint64(0x9E3779B97F4A7C15)


class WordEncoder:
    """Cuts words of the basic tokenizer into pieces; knows a piece by its number."""

    def __init__(self, numbers: Mapping[str, int], unknown: int) -> None:
        self._unknown = unknown
        inner = {
            piece[len(CONTINUATION) :]: number
            for piece, number in numbers.items()
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        }
        self._trie = _Trie([(_OPENING_ROOT, numbers), (_INNER_ROOT, inner)])

    def encode(self, words: Sequence[str]) -> tuple[Int32, Int64]:
        """The numbers of the words' pieces one after another, and the offsets that part the words.

        A word with a missing piece, or of more than MAX_WORD_CHARS characters, is [UNK] alone; but
        in a script without spaces between words a long word is cut into stretches first.
        """
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        if len(words) and lengths.max() > MAX_WORD_CHARS:
            return self._encode_long(words)
        return self._encode_short(words, lengths)

    def _encode_long(self, words: Sequence[str]) -> tuple[Int32, Int64]:
        parts: list[str] = []
        counts = []
        for word in words:
            cut = stretches(word) if len(word) > MAX_WORD_CHARS and lacks_spaces(word) else [word]
            parts += cut
            counts.append(len(cut))
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        ids, offsets = self._encode_short(parts, lengths)
        return ids, offsets[np.concatenate(([0], np.cumsum(counts)))]

    def _encode_short(self, words: Sequence[str], lengths: Int64) -> tuple[Int32, Int64]:
        codes = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32).astype(np.int64)
        ends = np.cumsum(lengths)
        owners, ids = self._walk(codes, ends - lengths, ends)
        unknown = lengths > MAX_WORD_CHARS
        unknown[owners[ids == _NONE]] = True
        known = ~unknown[owners]
        owners = np.concatenate((owners[known], np.flatnonzero(unknown)))
        ids = np.concatenate((ids[known], np.full(int(unknown.sum()), self._unknown, np.int32)))
        offsets = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=len(words)), out=offsets[1:])
        return ids[np.argsort(owners, kind="stable")], offsets

    def _walk(self, codes: Int64, begins: Int64, ends: Int64) -> tuple[Int64, Int32]:
        """(word, piece) in the order in which each word gives them; _NONE where a piece is missing."""
        word = np.flatnonzero(begins < ends)
        place, end = begins[word], ends[word]
        node = np.full(len(word), _OPENING_ROOT, np.int32)
        found = np.full(len(word), _NONE, np.int32)
        behind = place.copy()
        owners, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        while len(word):
            inside = place < end
            node = self._trie.step(node, codes[np.where(inside, place, 0)])
            goes_on = inside & (node >= 0)
            stuck = np.flatnonzero(~goes_on)
            place += 1
            piece = self._trie.piece[node]
            hit = goes_on & (piece >= 0)
            found = np.where(hit, piece, found)
            behind = np.where(hit, place, behind)
            if len(stuck):
                owners.append(word[stuck])
                ids.append(found[stuck])
                finished = (found[stuck] == _NONE) | (behind[stuck] == end[stuck])
                node[stuck], place[stuck], found[stuck] = _INNER_ROOT, behind[stuck], _NONE
                if finished.any():
                    keep = np.ones(len(word), bool)
                    keep[stuck[finished]] = False
                    word, place, end = word[keep], place[keep], end[keep]
                    node, found, behind = node[keep], found[keep], behind[keep]
        return np.concatenate(owners), np.concatenate(ids)


class _Trie:
    """Nodes are numbers; ``piece[node]`` is the piece that ends there or _NONE."""

    def __init__(self, roots: Iterable[tuple[int, Mapping[str, int]]]) -> None:
        begin, end, node, number, texts = [], [], [], [], []
        filled = 0
        for root, pieces in roots:
            for text, piece in pieces.items():
                begin.append(filled)
                filled += len(text)
                end.append(filled)
                node.append(root)
                number.append(piece)
                texts.append(text)
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32).astype(np.int64)
        self._build(codes, *(np.array(column, np.int64) for column in (begin, end, node, number)))

    def _build(self, codes: Int64, place: Int64, end: Int64, node: Int64, number: Int64) -> None:
        """Level by level: the distinct (node, character) of a level are its new nodes."""
        nodes = 2
        keys, pieces = [np.zeros(0, np.int64)], [np.full(2, _NONE, np.int32)]
        while len(place):
            edges, which = np.unique(node << _CODE_BITS | codes[place], return_inverse=True)
            node = which + nodes
            place = place + 1
            ended = place == end
            level = np.full(len(edges), _NONE, np.int32)
            level[which[ended]] = number[ended]
            keys.append(edges)
            pieces.append(level)
            nodes += len(edges)
            place, end, node, number = place[~ended], end[~ended], node[~ended], number[~ended]
        # A last element for the node -1 of a walk that left the trie.
        self.piece = np.concatenate([*pieces, np.full(1, _NONE, np.int32)])
        self._fill(np.concatenate(keys))

    def _fill(self, keys: Int64) -> None:
        """Open addressing; edge number i leads to node i + 2."""
        bits = max(int(2 * len(keys)).bit_length(), 4)
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._keys = np.full(1 << bits, -1, np.int64)
        self._targets = np.full(1 << bits, _NONE, np.int32)
        slots = self._slots(keys)
        left = np.arange(len(keys))
        while len(left):
            free = left[self._keys[slots[left]] == -1]
            # Of those that want one slot, the last written gets it; the others look on.
            self._keys[slots[free]] = keys[free]
            placed = self._keys[slots[left]] == keys[left]
            self._targets[slots[left[placed]]] = left[placed] + 2
            left = left[~placed]
            slots[left] = (slots[left] + 1) & self._mask

    def _slots(self, keys: Int64) -> Int64:
        with np.errstate(over="ignore"):
            return ((keys.astype(np.uint64) * _HASH) >> self._shift).astype(np.int64)

    def step(self, nodes: Int32, codes: Int64) -> Int32:
        """Where the edges of these characters lead; _NONE where there is none."""
        keys = (nodes.astype(np.int64) << _CODE_BITS) | codes
        slots = self._slots(keys)
        stored = self._keys.take(slots)
        out = self._targets.take(slots)
        unsure = np.flatnonzero((stored != keys) & (stored != -1))
        out[stored != keys] = _NONE
        while len(unsure):
            slots[unsure] = (slots[unsure] + 1) & self._mask
            stored = self._keys[slots[unsure]]
            same = stored == keys[unsure]
            out[unsure[same]] = self._targets[slots[unsure[same]]]
            unsure = unsure[~same & (stored != -1)]
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
