"""Clusters of near duplicates: connected components of the verified pairs.

The result maps every node to the smallest node of its component. `components` computes it from edges
that fit in memory. For more edges, `large_star` and `small_star` (Kiveris et al., Connected Components in
MapReduce and Beyond, SoCC 2014) shrink them first. Each is a function of the edges around single nodes, so it
runs by hash bucket of the node. After a logarithmic number of rounds every component is a star around its
smallest node.

Nodes are unsigned 64-bit numbers. An edge is a row with two nodes.
"""

import numpy as np
import pyarrow as pa

from schemas.arrays import I64, U64
from schemas.randomness import draws

EDGES = pa.schema(
    [pa.field("left", pa.uint64(), nullable=False), pa.field("right", pa.uint64(), nullable=False)]
)


def edge_table(left: U64, right: U64) -> pa.Table:
    """EDGES with these two columns."""
    return pa.table([pa.array(left, pa.uint64()), pa.array(right, pa.uint64())], schema=EDGES)


def components(edges: pa.Table) -> pa.Table:
    """EDGES, sorted, from every node to the smallest node of its component, except from that node itself."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    nodes, places = np.unique(np.concatenate((left, right)), return_inverse=True)
    label = _smallest_labels(places[: len(left)], places[len(left) :], len(nodes))
    others = np.flatnonzero(label != np.arange(len(nodes)))
    return edge_table(nodes[others], nodes[label[others]])


def _smallest_labels(left: I64, right: I64, count: int) -> I64:
    """Union-find over whole arrays. Hooks the larger root under the smaller one, then shortens all paths."""
    label = np.arange(count)
    while True:
        first, second = label[left], label[right]
        differ = first != second
        if not differ.any():
            return label
        left, right = left[differ], right[differ]
        np.minimum.at(label, np.maximum(first, second)[differ], np.minimum(first, second)[differ])
        while not np.array_equal(shorter := label[label], label):
            label = shorter


def node_bucket(nodes: pa.ChunkedArray | pa.Array, buckets: int) -> I64:
    """The bucket of each node."""
    return (draws(nodes.to_numpy()) % np.uint64(buckets)).astype(np.int64)


def both_ways(edges: pa.Table) -> pa.Table:
    """Every edge in both directions, so that the rows with a node on the left are its neighborhood."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    return edge_table(np.concatenate((left, right)), np.concatenate((right, left)))


def downhill(edges: pa.Table) -> pa.Table:
    """Every edge from its larger end."""
    left, right = edges["left"].to_numpy(), edges["right"].to_numpy()
    return edge_table(np.maximum(left, right), np.minimum(left, right))


def large_star(around: pa.Table) -> pa.Table:
    """Connects every larger neighbor of each left node to the node's smallest neighbor, or to the node
    itself.

    ``around`` has `both_ways` edges with all edges of each of its left nodes.
    """
    left, right = around["left"].to_numpy(), around["right"].to_numpy()
    larger = right > left
    return _distinct_edges(right[larger], _smallest_around(left, right)[larger])


def small_star(around: pa.Table) -> pa.Table:
    """Connects each left node and all its smaller neighbors to the smallest of them.

    ``around`` has `downhill` edges with all edges of each of its left nodes.
    """
    left, right = around["left"].to_numpy(), around["right"].to_numpy()
    smallest = _smallest_around(left, right)
    return _distinct_edges(np.concatenate((left, right)), np.concatenate((smallest, smallest)))


def _smallest_around(left: U64, right: U64) -> U64:
    """For each row, the smallest among its left node and all neighbors of that node."""
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
