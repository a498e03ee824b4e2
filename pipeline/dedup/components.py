"""Clusters of near duplicates: connected components of the verified pairs.

Two ways that give the same answer, since the answer is unique: every node with the smallest node of
its component. `components` works on edges that fit in memory. Where they do not, `large_star` and
`small_star` (Kiveris et al., Connected Components in MapReduce and Beyond, SoCC 2014) shrink them:
each is a function of the edges around single nodes, so they run by hash bucket of the node, and after
a logarithmic number of rounds every component is a star around its smallest node.

Nodes are unsigned 64-bit numbers; an edge is a row of two.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.randomness import draws

EDGES = pa.schema(
    [pa.field("left", pa.uint64(), nullable=False), pa.field("right", pa.uint64(), nullable=False)]
)

U64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]


def edge_table(left: U64, right: U64) -> pa.Table:
    """EDGES of two columns."""
    return pa.table([pa.array(left, pa.uint64()), pa.array(right, pa.uint64())], schema=EDGES)


def components(edges: pa.Table) -> pa.Table:
    """EDGES from every node that has a smaller one in its component to the smallest; sorted."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    nodes, places = np.unique(np.concatenate((left, right)), return_inverse=True)
    label = _smallest_labels(places[: len(left)], places[len(left) :], len(nodes))
    others = np.flatnonzero(label != np.arange(len(nodes)))
    return edge_table(nodes[others], nodes[label[others]])


def _smallest_labels(left: Int64, right: Int64, count: int) -> Int64:
    """Union-find over whole arrays: hook the larger root under the smaller, then shorten all paths."""
    label = np.arange(count)
    while True:
        one, other = label[left], label[right]
        differ = one != other
        if not differ.any():
            return label
        left, right = left[differ], right[differ]
        np.minimum.at(label, np.maximum(one, other)[differ], np.minimum(one, other)[differ])
        while not np.array_equal(shorter := label[label], label):
            label = shorter


def node_bucket(nodes: pa.ChunkedArray | pa.Array, buckets: int) -> Int64:
    """The bucket of each node."""
    return (draws(nodes.to_numpy()) % np.uint64(buckets)).astype(np.int64)


def both_ways(edges: pa.Table) -> pa.Table:
    """Every edge from either end: the neighbourhood of a node is then the rows with it at the left."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    return edge_table(np.concatenate((left, right)), np.concatenate((right, left)))


def downhill(edges: pa.Table) -> pa.Table:
    """Every edge from its larger end."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    return edge_table(np.maximum(left, right), np.minimum(left, right))


def large_star(around: pa.Table) -> pa.Table:
    """Hangs every larger neighbour of each left node under its smallest neighbour or itself.

    Takes `both_ways` edges, all of a left node's among them.
    """
    left, right = around["left"].to_numpy(), around["right"].to_numpy()
    larger = right > left
    return _distinct_edges(right[larger], _smallest_around(left, right)[larger])


def small_star(around: pa.Table) -> pa.Table:
    """Hangs each left node and all its smaller neighbours under the smallest of them.

    Takes `downhill` edges, all of a left node's among them.
    """
    left, right = around["left"].to_numpy(), around["right"].to_numpy()
    smallest = _smallest_around(left, right)
    return _distinct_edges(np.concatenate((left, right)), np.concatenate((smallest, smallest)))


def _smallest_around(left: U64, right: U64) -> U64:
    """For each row, the smallest of its left node and of all that node's right ends."""
    nodes, places = np.unique(left, return_inverse=True)
    least = nodes.copy()
    np.minimum.at(least, places, right)
    return np.asarray(least[places])


def _distinct_edges(left: U64, right: U64) -> pa.Table:
    """Distinct edges without loops, sorted."""
    edges = edge_table(left[left != right], right[left != right])
    return distinct(edges)


def distinct(edges: pa.Table) -> pa.Table:
    """The distinct edges, sorted."""
    found = edges.group_by(["left", "right"]).aggregate([]).cast(EDGES)
    return found.sort_by([("left", "ascending"), ("right", "ascending")])


def is_star(edges: pa.Table) -> bool:
    """Whether each left end has one right end, which is no left end: what `components` gives."""
    met = pc.any(pc.is_in(edges["left"], value_set=pc.unique(edges["right"]))).as_py()
    return not met and distinct(edges).num_rows == pc.count_distinct(edges["left"]).as_py()
