"""Clusters of near duplicates: connected components of the verified pairs.

Two ways that give the same answer, since the answer is unique: every node with the smallest node of
its component. `components` works on edges that fit in memory. Where they do not, `large_star` and
`small_star` (Kiveris et al., Connected Components in MapReduce and Beyond, SoCC 2014) shrink them:
each is a function of the edges around single nodes, so they run by hash bucket of the node, and after
a logarithmic number of rounds every component is a star around its smallest node.

An edge is a row of two strings; the order of strings is the order of nodes.
"""

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

EDGES = pa.schema(
    [pa.field("left", pa.string(), nullable=False), pa.field("right", pa.string(), nullable=False)]
)
STARS = pa.schema(
    [pa.field("node", pa.string(), nullable=False), pa.field("smallest", pa.string(), nullable=False)]
)

Int64 = npt.NDArray[np.int64]


def components(edges: pa.Table) -> pa.Table:
    """STARS: every node that has a smaller one in its component, with the smallest, sorted by node."""
    names = pc.unique(
        pa.concat_arrays([*edges["left"].chunks, *edges["right"].chunks, pa.array([], pa.string())])
    )
    names = names.sort()
    left = pc.index_in(edges["left"], value_set=names).to_numpy().astype(np.int64)
    right = pc.index_in(edges["right"], value_set=names).to_numpy().astype(np.int64)
    label = _smallest_labels(left, right, len(names))
    others = np.flatnonzero(label != np.arange(len(names)))
    return pa.table([names.take(pa.array(others)), names.take(pa.array(label[others]))], schema=STARS)


def _smallest_labels(left: Int64, right: Int64, count: int) -> Int64:
    """Union-find over whole arrays: hook the larger root under the smaller, then shorten all paths."""
    label = np.arange(count)
    while True:
        a, b = label[left], label[right]
        differ = a != b
        if not differ.any():
            return label
        left, right = left[differ], right[differ]
        low, high = np.minimum(a, b)[differ], np.maximum(a, b)[differ]
        np.minimum.at(label, high, low)
        while not np.array_equal(shorter := label[label], label):
            label = shorter


def edge_bucket(nodes: pa.ChunkedArray, buckets: int) -> Int64:
    """The bucket of each node."""
    return np.array([zlib.crc32(node.encode()) % buckets for node in nodes.to_pylist()], np.int64)


def both_ways(edges: pa.Table) -> pa.Table:
    """Every edge from either end: the neighbourhood of a node is then the rows with it at the left."""
    turned = pa.table([edges["right"], edges["left"]], schema=EDGES)
    return pa.concat_tables([edges.select(["left", "right"]).cast(EDGES), turned])


def downhill(edges: pa.Table) -> pa.Table:
    """Every edge from its larger end."""
    swapped = pc.less(edges["left"], edges["right"])
    left = pc.if_else(swapped, edges["right"], edges["left"])
    right = pc.if_else(swapped, edges["left"], edges["right"])
    return pa.table([left, right], schema=EDGES)


def large_star(around: pa.Table) -> pa.Table:
    """Hangs every larger neighbour of each left node under its smallest neighbour or itself.

    Takes `both_ways` edges, all of a left node's among them.
    """
    smallest = _smallest_neighbour(around)
    larger = pc.greater(around["right"], around["left"])
    return _edges(around["right"].filter(larger), smallest.filter(larger))


def small_star(around: pa.Table) -> pa.Table:
    """Hangs each left node and all its smaller neighbours under the smallest of them.

    Takes `downhill` edges, all of a left node's among them.
    """
    smallest = _smallest_neighbour(around)
    ends = pa.chunked_array([*around["left"].chunks, *around["right"].chunks], pa.string())
    tops = pa.chunked_array([*smallest.chunks, *smallest.chunks], pa.string())
    return _edges(ends, tops)


def _smallest_neighbour(around: pa.Table) -> pa.ChunkedArray:
    """For each row, the smallest of its left node and all right nodes of that."""
    least = around.group_by("left").aggregate([("right", "min")])
    position = pc.index_in(around["left"], value_set=least["left"].combine_chunks())
    neighbour = least["right_min"].take(position)
    return pc.min_element_wise(neighbour, around["left"])


def _edges(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.Table:
    """Distinct edges without loops, sorted."""
    edges = pa.table([left, right], schema=EDGES)
    edges = edges.filter(pc.not_equal(edges["left"], edges["right"]))
    return (
        edges.group_by(["left", "right"])
        .aggregate([])
        .sort_by([("left", "ascending"), ("right", "ascending")])
    )


def is_star(edges: pa.Table) -> bool:
    """Whether no node is both a left and a right end: `downhill` edges are then STARS."""
    return not pc.any(pc.is_in(edges["left"], value_set=pc.unique(edges["right"]))).as_py()
