"""A trie of subwords in one flat table, which many words walk together in a few NumPy operations per step.

A node's number is the start of its row. The edge of character c is in slot ``node + c``. It contains its
source node, as a check, and its target node. Rows overlap, because each is placed where its slots are free (a
"double array", Aoe 1989). A step is one addition and one table lookup, without hashing or probing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from schemas.arrays import I32, I64

NO_PIECE = -1
# Character numbers start at 2. 0 ends a word, and 1 is every character without an edge.
END, STRANGE = 0, 1
_CODE_POINTS = 0x110000
_CODE_BITS = 21
_NODE_BITS = np.int64(32)
_NODE_MASK = np.int64((1 << 32) - 1)
_HASH = np.uint64(0x9E3779B97F4A7C15)
# Slots per node, the minimum numbers of edges for each round of placing rows from large to small, and the
# number of tries before the table grows.
_SPARSENESS = 4
_ROW_SIZES = (1024, 256, 64, 32, 16, 8, 6, 5, 4, 3, 2, 1)
_ROUNDS = 64


class PieceTrie:
    """Several sets of subwords, each under its own root."""

    def __init__(self, roots: Sequence[Mapping[str, int]]) -> None:
        texts = [text for pieces in roots for text in pieces]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        distinct, codes = np.unique(points, return_inverse=True)
        # The number of each code point.
        self.codes = np.full(_CODE_POINTS, STRANGE, np.int32)
        self.codes[0] = END
        self.codes[distinct] = np.arange(len(distinct)) + 2
        numbers = [number for pieces in roots for number in pieces.values()]
        root = np.repeat(np.arange(len(roots)), [len(pieces) for pieces in roots])
        ends = np.cumsum(lengths)
        self._grow(codes + 2, ends - lengths, ends, root, np.array(numbers, np.int32), len(roots))

    def _grow(self, codes: I64, place: I64, end: I64, node: I64, number: I32, roots: int) -> None:
        """Builds level by level. The distinct (node, character) pairs of a level are its new nodes."""
        edges: list[I64] = [np.zeros(0, np.int64)]
        pieces = [np.full(roots, NO_PIECE, np.int32)]
        depths, nodes = [roots], roots
        while len(place):
            distinct, inverse = np.unique(node << _CODE_BITS | codes[place], return_inverse=True)
            node = inverse + nodes
            place = place + 1
            ended = place == end
            level = np.full(len(distinct), NO_PIECE, np.int32)
            level[inverse[ended]] = number[ended]
            edges.append(distinct)
            pieces.append(level)
            depths.append(len(distinct))
            nodes += len(distinct)
            place, end, node, number = place[~ended], end[~ended], node[~ended], number[~ended]
        packed = np.concatenate(edges)
        parents, codes = packed >> _CODE_BITS, packed & ((1 << _CODE_BITS) - 1)
        rows = _Rows(parents, codes, nodes)
        self._roots = rows.begins[:roots].tolist()
        self.table = np.full(rows.size, -1, np.int64)
        slots = rows.begins[parents] + codes
        self.table[slots] = rows.begins[parents] << _NODE_BITS | rows.begins[roots:]
        self._fill(rows, parents, np.concatenate(pieces), depths)

    def _fill(self, rows: "_Rows", parents: I64, pieces: I32, depths: list[int]) -> None:
        """Stores for each node the longest subword on the path to it, and how many steps back it ended."""
        depth = np.repeat(np.arange(len(depths), dtype=np.int64), depths)
        behind = np.where(pieces >= 0, 0, depth)
        begin = depths[0]
        for size in depths[1:]:
            level = slice(begin, begin + size)
            before = parents[begin - depths[0] : begin - depths[0] + size]
            inherits = (pieces[level] < 0) & (pieces[before] >= 0)
            pieces[level] = np.where(inherits, pieces[before], pieces[level])
            behind[level] = np.where(inherits, behind[before] + 1, behind[level])
            begin += size
        self.piece = np.full(rows.size, NO_PIECE, np.int32)
        self.depth, self.behind = np.zeros((2, rows.size), np.int64)
        self.piece[rows.begins] = pieces
        self.depth[rows.begins] = depth
        self.behind[rows.begins] = behind

    def walk(self, codes: I64, begins: I64) -> tuple[I32, I64]:
        """Splits words into the longest subwords, the first one from root 0 and the others from root 1.

        ``codes`` are the numbers of the words' characters with END after each word, and ``begins`` the starts
        of the words. No word is empty. Returns an array as long as ``codes`` with the subword that starts at
        each position or NO_PIECE, and the positions where no subword fits, at which the walk of a word stops.
        """
        out = np.full(len(codes), NO_PIECE, np.int32)
        failed = [np.zeros(0, np.int64)]
        place = begins
        node = np.full(len(begins), self._roots[0], np.int64)
        while len(place):
            edge = self.table.take(node + codes.take(place))
            stuck = np.flatnonzero(edge >> _NODE_BITS != node)
            at = place.take(stuck)
            last = node.take(stuck)
            node = edge & _NODE_MASK
            place = place + 1
            if not len(stuck):
                continue
            piece = self.piece.take(last)
            begin = at - self.depth.take(last)
            out[begin] = piece
            at -= self.behind.take(last)
            missing = piece < 0
            if missing.any():
                failed.append(begin[missing])
            node[stuck], place[stuck] = self._roots[1], at
            finished = missing | (codes.take(at) == END)
            if finished.any():
                keep = np.ones(len(place), bool)
                keep[stuck[finished]] = False
                place, node = place[keep], node[keep]
        return out, np.concatenate(failed)


class _Rows:
    """The start of each node's row. No two rows start at the same slot, and no two edges share a slot."""

    def __init__(self, parents: I64, codes: I64, nodes: int) -> None:
        self._codes = codes
        self._counts = np.bincount(parents, minlength=nodes)
        self._firsts = np.cumsum(self._counts) - self._counts
        self._width = int(codes.max(initial=0)) + 1
        self.begins = np.full(nodes, -1, np.int64)
        span = _SPARSENESS * nodes + self._width
        self._used_slots, self._used_starts = np.zeros(span + self._width, bool), np.zeros(span, bool)
        self._claims = np.zeros(len(self._used_slots), np.int64)
        above = 1 << 62
        for least in _ROW_SIZES:
            self._place(np.flatnonzero((self._counts >= least) & (self._counts < above)))
            above = least
        leaves = np.flatnonzero(self._counts == 0)
        self.begins[leaves] = np.flatnonzero(~self._used_starts)[: len(leaves)]

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self._used_slots)

    def _enlarge(self) -> None:
        more = len(self._used_starts)
        self._used_slots = np.concatenate((self._used_slots, np.zeros(more, bool)))
        self._used_starts = np.concatenate((self._used_starts, np.zeros(more, bool)))
        self._claims = np.zeros(len(self._used_slots), np.int64)

    def _place(self, nodes: I64) -> None:
        number = 0
        while len(nodes):
            number += 1
            if number % _ROUNDS == 0:
                self._enlarge()
            nodes = nodes[~self._try(nodes, number)]

    def _try(self, nodes: I64, number: int) -> npt.NDArray[np.bool_]:
        """Tries one position for the row of each node. Returns which rows were placed."""
        with np.errstate(over="ignore"):
            mixed = (nodes * 0x10001 + number).astype(np.uint64) * _HASH
        begins = ((mixed >> np.uint64(24)) % np.uint64(len(self._used_starts))).astype(np.int64)
        counts = self._counts[nodes]
        ends = np.cumsum(counts)
        edges = np.repeat(self._firsts[nodes] - ends + counts, counts) + np.arange(ends[-1])
        slots = np.repeat(begins, counts) + self._codes[edges]
        free = np.logical_and.reduceat(~self._used_slots[slots], ends - counts) & ~self._used_starts[begins]
        # If several rows claim a slot or a start, the last one written gets it.
        owner = np.repeat(nodes, counts)
        wants = np.repeat(free, counts)
        self._claims[slots[wants]] = owner[wants]
        free &= np.logical_and.reduceat(self._claims[slots] == owner, ends - counts)
        self._claims[begins[free]] = nodes[free]
        free &= self._claims[begins] == nodes
        self._used_slots[slots[np.repeat(free, counts)]] = True
        self._used_starts[begins[free]] = True
        self.begins[nodes[free]] = begins[free]
        return free
