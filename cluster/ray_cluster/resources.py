"""Compares what a job needs with what the Ray cluster has, and waits for resources."""

import logging
import time
from collections.abc import Mapping

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from cluster.jobs import shutdown
from schemas.errors import ClusterError

logger = logging.getLogger(__name__)

UNTIL_FIRST_LINE, BETWEEN_LINES = 5.0, 30.0
"""Seconds to wait before the first log line about the wait, and between two such lines."""
_POLL_SECONDS = 0.5


def shortage(bundle: Mapping[str, float], copies: int) -> str | None:
    """What the cluster lacks for ``copies`` of ``bundle`` (resource -> amount), as text. None if nothing.

    Names what the whole cluster has, how much of it is free, or that no single node has room for a bundle.
    """
    needed = {name: amount * copies for name, amount in bundle.items() if amount}
    total, free = ray.cluster_resources(), ray.available_resources()
    if any(total.get(name, 0.0) < amount for name, amount in needed.items()):
        return f"{_listed(needed)}, the cluster has {_listed(total, needed)}"
    if any(free.get(name, 0.0) < amount for name, amount in needed.items()):
        unused = _listed(free, needed)
        return f"{_listed(needed)}, the cluster has {_listed(total, needed)}, but only {unused} free"
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0.0) >= bundle[name] for name in needed) for node in nodes):
        return f"a node with {_listed(bundle, needed)}, the cluster has no node that large"
    return None


def check_fits(bundle: Mapping[str, float], copies: int, advice: str) -> None:
    """Raises ClusterError when a cluster that will not grow can never hold the bundles."""
    total = ray.cluster_resources()
    if any(total.get(name, 0.0) < amount * copies for name, amount in bundle.items()):
        raise ClusterError(f"the job needs {shortage(bundle, copies)}; {advice}")


def await_bundle(bundle: Mapping[str, float], what: str) -> None:
    """Waits until the cluster has room for ``bundle``. Logs every half minute what is missing.

    Requests the resources, so that an autoscaler can add nodes.
    """
    started = time.monotonic()
    next_line = started + UNTIL_FIRST_LINE
    group = placement_group([dict(bundle)])
    try:
        while not group.wait(_POLL_SECONDS):
            # Ray loses an exception that a signal handler raises while it waits.
            shutdown.raise_if_requested()
            now = time.monotonic()
            if now > next_line:
                next_line = now + BETWEEN_LINES
                missing = shortage(bundle, 1)
                if missing is not None:
                    logger.warning("%s: waiting for %s (%.0f s)", what, missing, now - started)
    finally:
        remove_placement_group(group)


def _listed(amounts: Mapping[str, float], names: Mapping[str, float] | None = None) -> str:
    """``{"CPU": 2, "GPU": 1}`` as "2 CPUs and 1 GPU"."""
    chosen = {name: amounts.get(name, 0.0) for name in names or amounts}
    return " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in chosen.items())
