"""Whether the partitions of a build's shuffles fit into the memory of a node."""

import math

from bertmill.planning.forecast import CorpusSize, StageForecast, shuffle_tasks
from pipeline.config import BuildConfig
from pipeline.engine.partitions import MOST_PARTITIONS
from schemas.errors import ConfigError

_OBJECT_SHARE = 0.3
"""Share of a node's memory that Ray gives to objects by default."""
_PARTITION_SHARE = 0.25
_SKEW = 1.2
"""The largest partition over the average (benchmarks/results/shuffle_bookkeeping.md)."""


def largest_partition_gb(size: CorpusSize, stage: StageForecast) -> float:
    """Gigabytes of the largest partition of a stage, or 0 for a stage without a shuffle."""
    _, partitions = shuffle_tasks(stage.name, size, stage.moved_gb)
    return stage.moved_gb / partitions * _SKEW


def check_partitions(
    config: BuildConfig, size: CorpusSize, stages: list[StageForecast], node_gb: float
) -> None:
    """Raises ConfigError that names the first stage with a partition above a quarter of the object memory.

    ``node_gb`` is the memory of a node. Memory holds all stored bytes of a partition together.
    """
    most = node_gb * _OBJECT_SHARE * _PARTITION_SHARE
    for stage in stages:
        needed = largest_partition_gb(size, stage)
        if needed <= most:
            continue
        node = math.ceil(needed / _OBJECT_SHARE / _PARTITION_SHARE)
        fitting = math.ceil(stage.moved_gb * _SKEW / most)
        # Smaller buckets make more partitions of this stage only, and not more than a driver can keep.
        smaller = int(size.text_mb * 1e6 * config.instances.passes / fitting)
        helps = stage.name == "instances" and fitting <= MOST_PARTITIONS
        more = f"set instances.bucket_bytes to {smaller} or " if helps else ""
        raise ConfigError(
            f"{stage.name}: a partition of {needed:,.2f} GB exceeds {most:,.2f} GB, a quarter of the object"
            f" memory of a node with {node_gb:g} GB; {more}use nodes of at least {node} GB"
            " (--node-memory-gb)"
        )
