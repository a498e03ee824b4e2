"""Compares connected components by union-find and by star rounds."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.dedup.components import (
    both_ways,
    components,
    distinct,
    downhill,
    edge_table,
    large_star,
    node_bucket,
    small_star,
)

EDGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60)


def table(edges: Any) -> pa.Table:
    ends = np.array(edges, np.uint64).reshape(-1, 2)
    return edge_table(ends[:, 0], ends[:, 1])


def by_hand(edges: Any) -> list[tuple[int, int]]:
    label = {node: node for edge in edges for node in edge}
    for _ in label:
        for one, other in edges:
            label[one] = label[other] = min(label[one], label[other])
    return sorted((node, smallest) for node, smallest in label.items() if node != smallest)


def is_star(edges: pa.Table) -> bool:
    """Whether each left end has one right end, which is not a left end, as in a result of `components`."""
    met = pc.any(pc.is_in(edges["left"], value_set=pc.unique(edges["right"]))).as_py()
    return bool(not met and distinct(edges).num_rows == pc.count_distinct(edges["left"]).as_py())


def rows(found: pa.Table) -> list[tuple[int, int]]:
    return list(zip(found["left"].to_pylist(), found["right"].to_pylist(), strict=True))


@given(EDGES, st.randoms())
def test_every_node_hangs_under_the_smallest_of_its_component(edges: Any, chance: random.Random) -> None:
    assert rows(components(table(edges))) == by_hand(edges)
    chance.shuffle(edges)
    assert rows(components(table([edge[::-1] for edge in edges]))) == by_hand(edges)


def by_bucket(star: Callable[..., pa.Table], edges: Any, buckets: int) -> pa.Table:
    place = node_bucket(edges["left"], buckets)
    return pa.concat_tables([star(edges.filter(pa.array(place == bucket))) for bucket in range(buckets)])


@example([(0, 4), (1, 2), (2, 3), (3, 4)], 1)  # in between, a node belongs to two centers
@given(EDGES, st.sampled_from([1, 3, 8]))
def test_star_rounds_in_buckets_end_in_the_same_stars(edges: Any, buckets: int) -> None:
    current = distinct(downhill(table([edge for edge in edges if edge[0] != edge[1]])))
    for _ in range(20):
        before = current
        current = by_bucket(large_star, both_ways(current), buckets)
        current = by_bucket(small_star, downhill(current), buckets)
        if is_star(current) and current.num_rows == before.num_rows:
            break
    assert rows(distinct(current)) == by_hand(edges)


def test_a_long_path_needs_few_rounds() -> None:
    nodes = np.random.default_rng(3).permutation(2000).astype(np.uint64)
    current = downhill(edge_table(nodes[:-1], nodes[1:]))
    rounds = 0
    while not is_star(current) or current.num_rows != 1999:
        current = small_star(downhill(large_star(both_ways(current))))
        rounds += 1
    assert rounds <= 12
    assert rows(distinct(current)) == [(node, 0) for node in range(1, 2000)]
