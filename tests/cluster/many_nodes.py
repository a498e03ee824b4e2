"""Runs both jobs on four hosts that share only an object store, kills a host in each, and checks the results.

    python -m tests.cluster.many_nodes [--record FILE]        # as root, six minutes on two cores

``ray job submit`` starts the build, and ``bertmill submit`` the training. The reference is the same two jobs
on this machine without failures.
"""

import argparse
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import requests
import yaml

from cluster import storage
from cluster.ray_cluster.connection import LOCAL_SETTINGS
from tests.cluster.hosts import Host, Network, network
from tests.support.checkout import ROOT, copy_checkout
from tests.support.s3_server import BUCKET, S3Server
from tests.support.waiting import HANG_SECONDS, wait_until

WORKERS = ("a", "b", "c")
DUMPS = ("ltg", "frwiki-mini", "rowiki", "fiwiki", "idwiki", "afwiki", "mkwiki", "arwiki", "svwiki", "jawiki")
STEPS = 60


class Cluster:
    """A Ray cluster on hosts: a head without CPUs and three workers of one CPU."""

    def __init__(self, net: Network, folder: Path) -> None:
        self._net, self._folder = net, folder
        # The shell may have another environment than these tests.
        self.path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        program = shutil.which("ray", path=self.path)
        assert program is not None
        self._ray = program
        self.token = secrets.token_hex(16)
        self._environment = {
            "PATH": self.path, "HOME": "/tmp", "LANG": "C.UTF-8",
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "GLOO_SOCKET_IFNAME": "eth0", "RAY_DISABLE_IMPORT_WARNING": "1",
            # By default Ray looks for dead nodes every three seconds.
            "RAY_health_check_period_ms": "500",
            # Otherwise its workers have a niceness of 15, and other tests beside this one slow them down.
            **{f"RAY_{name}": str(value) for name, value in LOCAL_SETTINGS.items()},
        }  # fmt: skip
        self.workers: dict[str, Host] = {}
        head = net.add("head")
        self.dashboard = f"http://{head.address}:8265"
        self._gcs = f"{head.address}:6379"
        self._start({"head": head}, [
            "--head", "--port=6379", "--num-cpus=0",
            f"--dashboard-host={head.address}", "--dashboard-port=8265",
        ])  # fmt: skip

    def _start(self, hosts: Mapping[str, Host], words: list[str]) -> None:
        """Starts a node on each host and waits for all. A busy machine may exceed Ray's limit of 30 s."""
        deadline = time.monotonic() + HANG_SECONDS
        waiting = dict(hosts)
        while time.monotonic() < deadline:
            for name, host in waiting.items():
                command = [
                    self._ray, "start", "--block", f"--node-ip-address={host.address}",
                    "--object-store-memory=150000000", "--include-log-monitor=false", *words,
                ]  # fmt: skip
                host.start(command, self._environment, self._folder / f"{name}.log")
            for name, host in waiting.items():
                wait_until(partial(self._has_started_or_ended, host), what=f"node {name}", every=0.5)
            time.sleep(5)  # a node stops again if one of Ray's processes fails to start
            waiting = {name: host for name, host in waiting.items() if not host.running}
            if not waiting:
                return
            for host in waiting.values():
                host.kill()
        logs = [(self._folder / f"{name}.log").read_text()[-3000:] for name in waiting]
        raise RuntimeError("\n".join(logs))

    def _has_started_or_ended(self, host: Host) -> bool:
        return self.is_alive(host.address) or not host.running

    def add_workers(self, names: Iterable[str]) -> None:
        """Adds hosts that join the cluster."""
        added = {name: self._net.add(name) for name in names}
        self._start(added, [f"--address={self._gcs}", "--num-cpus=1"])
        self.workers |= added

    def is_alive(self, address: str) -> bool:
        """Whether Ray counts the node as alive. False if the dashboard does not answer.

        The number of nodes would not show this, because a dead host counts for another half minute.
        """
        try:
            answer = requests.get(
                f"{self.dashboard}/api/v0/nodes",
                headers={"Authorization": f"Bearer {self.token}"},
                timeout=60,
            )
            nodes = answer.json()["data"]["result"]["result"]
        except (requests.RequestException, ValueError, KeyError):
            return False
        return any(node["state"] == "ALIVE" and node["node_ip"] == address for node in nodes)

    def kill(self, name: str) -> None:
        """Simulates a power cut at a worker."""
        self.workers.pop(name).kill()


def count(uri: str, ending: str) -> int:
    """Number of files below ``uri`` with this ``ending``."""
    return sum(info.uri.endswith(ending) for info in storage.list_files(uri))


def contents(uri: str) -> dict[str, str]:
    """Path -> SHA-256 of every file of a corpus, without intermediate parts."""
    found = {info.uri.removeprefix(uri).lstrip("/") for info in storage.list_files(uri)}
    kept = sorted(name for name in found if not name.startswith("work/"))
    return {name: hashlib.sha256(storage.read_bytes(f"{uri}/{name}")).hexdigest() for name in kept}


def build_config(folder: Path) -> Path:
    """A build of ten dumps in the object store, cut so that every stage has many units."""
    for path in sorted((ROOT / "sample/dumps").glob("*.bz2")):
        if path.name.startswith(DUMPS):
            storage.upload_file(path, f"s3://{BUCKET}/dumps/{path.name}")
    config = {
        "output": f"s3://{BUCKET}/many/corpus",
        "sources": [{"name": "wikipedia", "kind": "wikimedia", "paths": [f"s3://{BUCKET}/dumps/*.xml.bz2"]}],
        "extraction": {"unit_bytes": 65536},
        "vocabulary": {"size": 3000},
        "instances": {
            # Many slots and passes, so that the stage lasts long enough for a power cut.
            "bucket_bytes": 16384, "validation_share": 0.05, "passes": 2,
            "lengths": [{"max_seq_length": 128, "max_predictions": 20}],
        },
    }  # fmt: skip
    return _written(folder / "build.yaml", config)


def train_config(folder: Path) -> Path:
    """A tiny run of two ranks with a checkpoint at every tenth step."""
    config = {
        "run": {"name": "tiny", "storage": f"s3://{BUCKET}/many/runs"},
        "data": {"manifest": f"s3://{BUCKET}/many/corpus/manifest.json"},
        "model": {"size": "tiny"},
        "phases": [{
            "max_seq_length": 128, "global_batch": 16, "micro_batch_tokens": 2048, "steps": STEPS,
            "learning_rate": 1e-3,
        }],
        "checkpoints": {"every_steps": 10, "every_seconds": None, "keep": 100},
        "workers": {"num_workers": 2, "max_failures": 5, "collective_timeout_seconds": 120},
        "logging": {"every_steps": 5},
    }  # fmt: skip
    return _written(folder / "train.yaml", config)


def _written(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def _running(
    words: list[str], checkout: Path, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as file:
        process = subprocess.Popen(words, cwd=checkout, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait(HANG_SECONDS) != 0:
        raise RuntimeError(f"exit status {process.returncode}:\n{log.read_text()[-4000:]}")


def run(folder: Path) -> dict[str, Any]:
    """Runs the whole experiment. Returns the observations. Raises if a job fails or a result differs."""
    with network() as net:
        server = S3Server(folder / "s3", address=net.gateway)
        server.start()
        os.environ.update(server.environment)
        try:
            return _experiment(net, folder, server.environment)
        finally:
            server.stop()


def _experiment(net: Network, folder: Path, aws: dict[str, str]) -> dict[str, Any]:
    cluster = Cluster(net, folder)
    cluster.add_workers(WORKERS)
    client = {
        **os.environ, "PATH": cluster.path, "RAY_ADDRESS": cluster.dashboard,
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token,
    }  # fmt: skip
    checkout = copy_checkout(folder / "checkout")
    # Ray uploads it with the working directory, like a user's configs.
    build, train = build_config(checkout / "configs"), train_config(checkout / "configs")
    seen = {
        "hosts": f"a head and {len(WORKERS)} workers of one CPU; own network, disk and processes each",
        "build": _build(cluster, build, client, aws, folder),
    }
    cluster.add_workers(("d", "e"))
    seen["pretrain"] = _pretrain(cluster, train, client, folder)
    for host in net.hosts.values():
        host.kill()
    return {**seen, "single": _compare(build, train, folder)}


def _build(
    cluster: Cluster, config: Path, client: dict[str, str], aws: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Builds with ``ray job submit``. Kills one worker during extraction and another during instances."""
    corpus, log = f"s3://{BUCKET}/many/corpus", folder / "build.log"
    environment = yaml.safe_load((ROOT / "infra/runtime_env.yaml").read_text())
    # One CPU remains at the end. A reduction that occupies it while waiting for lost data must fail soon.
    environment["env_vars"] |= {**aws, "RAY_DATA_HASH_SHUFFLE_REDUCE_GET_TIMEOUT_S": "60"}
    path = _written(folder / "runtime_env.yaml", environment)
    words = [
        "ray", "job", "submit", "--address", cluster.dashboard,
        "--runtime-env", str(path), "--working-dir", ".",
        "--", "python", "pipeline/build_corpus.py", "--config", f"configs/{config.name}",
    ]  # fmt: skip
    began = time.monotonic()
    with _running(words, folder / "checkout", client, log) as process:

        def done(stage: str) -> int:
            return sum(
                "/" + stage in info.uri
                for info in storage.list_files(f"{corpus}/work")
                if info.uri.endswith(".done.json")
            )

        def begun(stage: str) -> bool:
            return done(stage) >= 1 or process.poll() is not None

        kills = []
        for stage, victim in (("extract-", "a"), ("instances-", "b")):
            wait_until(partial(begun, stage), what=f"a unit of {stage}", every=0.1)
            kills.append({"host": victim, "stage": stage.rstrip("-"), "units done": done(stage)})
            cluster.kill(victim)
        _finish(process, log)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "killed": kills,
        "units": done("extract-"),
        "slots": done("instances-"),
    }


def _pretrain(cluster: Cluster, config: Path, client: dict[str, str], folder: Path) -> dict[str, Any]:
    """Trains with ``bertmill submit``. Kills a worker with a rank after a checkpoint."""
    runs, log = f"s3://{BUCKET}/many/runs", folder / "pretrain.log"
    words = [
        sys.executable,
        "-m",
        "bertmill",
        "submit",
        "pretrain",
        "--config",
        f"configs/{config.name}",
    ]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3"):
        words += ["--env", name]
    began = time.monotonic()
    with _running(words, folder / "checkout", client, log) as process:
        wait_until(
            lambda: count(runs, "MANIFEST.json") >= 2 or process.poll() is not None,
            what="two checkpoints",
            every=0.1,
        )
        committed = count(runs, "MANIFEST.json")
        victim = next(name for name, host in cluster.workers.items() if host.runs("RayTrainWorker"))
        cluster.kill(victim)
        _finish(process, log)
    attempts = {
        info.uri.split("/attempt-")[1][:6] for info in storage.list_files(runs) if "/attempt-" in info.uri
    }
    return {
        "seconds": round(time.monotonic() - began, 1),
        "killed": {"host": victim, "checkpoints": committed},
        "attempts": len(attempts),
    }


def _compare(build: Path, train: Path, folder: Path) -> dict[str, Any]:
    """Runs the same jobs on this machine alone, the training by torchrun, and compares the results' bytes."""
    many, single = f"s3://{BUCKET}/many", f"s3://{BUCKET}/single"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(folder / "checkout"),
        "RAY_memory_monitor_refresh_ms": "0",
    }
    jobs = {
        "build": [
            "pipeline/build_corpus.py",
            "--config",
            str(build),
            "--cpus",
            "2",
            f"--output={single}/corpus",
        ],
        "pretrain": [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "trainer/pretrain.py",
            "--launcher=torchrun",
            "--config",
            str(train),
            f"--run.storage={single}/runs",
        ],
    }
    seconds = {}
    for name, words in jobs.items():
        log, began = folder / f"single-{name}.log", time.monotonic()
        with _running([sys.executable, *words], folder / "checkout", environment, log) as process:
            _finish(process, log)
        seconds[name] = round(time.monotonic() - began, 1)
    theirs, ours = contents(f"{single}/corpus"), contents(f"{many}/corpus")
    different = sorted(name for name in ours.keys() | theirs if ours.get(name) != theirs.get(name))
    if different:
        raise AssertionError(f"corpora differ: {different}")
    weights = [last_weights(f"{uri}/runs/tiny") for uri in (many, single)]
    if weights[0] != weights[1]:
        raise AssertionError(f"weights differ: {weights}")
    return {"seconds": seconds, "equal files": len(ours), "weights": weights[0]}


def last_weights(run_uri: str) -> str:
    """SHA-256 of the model file of the last step's checkpoint."""
    found = [
        info.uri for info in storage.list_files(run_uri)
        if info.uri.endswith("model.safetensors") and f"{STEPS:0>9}"[-4:] in info.uri
    ]  # fmt: skip
    assert found, [info.uri for info in storage.list_files(run_uri)]
    return hashlib.sha256(storage.read_bytes(sorted(found)[-1])).hexdigest()


def main() -> None:
    """Runs the experiment and prints the observations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="many-nodes-"))
    folder.mkdir(exist_ok=True)
    seen = json.dumps(run(folder), indent=1)
    print(seen)
    if arguments.record:
        arguments.record.write_text(seen + "\n")


if __name__ == "__main__":
    main()
