"""A Ray cluster of several nodes on one machine, as a program: commands on stdin, answers on stdout.

Started with the number of nodes of one CPU each, beside a head without CPUs. ``kill PID`` kills the node
that the worker PID runs on, with everything on it. ``drain PID SECONDS`` announces to Ray that this node will
leave in SECONDS, ``drop`` removes the drained nodes, ``add`` starts another node, ``quit`` stops all.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"

import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "no_monitor": True,
            "include_log_monitor": False,
        },
    )
    nodes = [add(cluster) for _ in range(int(sys.argv[1]))]
    leaving: list[Any] = []
    answer(cluster.address)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "quit":
            break
        if command == "add":
            nodes.append(add(cluster))
        elif command == "drop":
            while leaving:
                cluster.remove_node(leaving.pop(), allow_graceful=False)
        else:
            node = node_of(nodes, int(words[0]))
            nodes.remove(node)
            if command == "kill":
                cluster.remove_node(node, allow_graceful=False)
            else:
                drain(cluster.address, node, float(words[1]))
                leaving.append(node)
        answer("done")
    cluster.shutdown()


def add(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=100 << 20)


def node_of(nodes: list[Any], pid: int) -> Any:
    """The node whose raylet is an ancestor of the process."""
    raylets = {process.process.pid: node for node in nodes for process in node.all_processes["raylet"]}
    while pid not in raylets:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid <= 1:
            raise SystemExit("this process is on no node that may be killed")
    return raylets[pid]


def drain(address: str, node: Any, seconds: float) -> None:
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int((time.time() + seconds) * 1000)
    client = ray._raylet.GcsClient(address=address)
    accepted, why = client.drain_node(node.node_id, reason, "the test takes this node", deadline)
    assert accepted, why


def answer(text: str) -> None:
    print(f"ANSWER {text}", flush=True)


if __name__ == "__main__":
    main()
