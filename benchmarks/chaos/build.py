"""Kills corpus builds at random moments and checks that they give the bytes of an undisturbed build.

    python -m benchmarks.chaos.build --kills 50 --storage file --table benchmarks/results/chaos_build.md

Every build writes the same part of the bundled sample to its own output, on two Ray nodes of one CPU:
the job's own and a second one that joins it. While it runs, something is killed with SIGKILL after a random
time: the whole job, one Ray worker, the job's raylet, the control store, the second node, or (on s3) the
storage server, which restarts. On s3 about every fiftieth request also gets a 503, and some connections break
before or after the work is done. A job that ended is restarted with the same command. Checks for every build:
it finishes, every published byte has the SHA-256 of the undisturbed build, and no unit that was committed
before a restart is committed again.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster import storage
from tests.pipeline import builds
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_server import BUCKET, S3Server

JOB, WORKER, RAYLET, CONTROL = "job", "worker", "raylet", "control store"
NODE, SERVER = "second node", "storage server"
# Kills that end a job, so that it must be restarted.
_FATAL = (JOB, RAYLET, CONTROL)
_EVERYWHERE = (JOB, WORKER, RAYLET, CONTROL, NODE)
TARGETS = {"file": _EVERYWHERE, "s3": (*_EVERYWHERE, SERVER)}
# Shares of the requests to the storage server that fail, in addition to those during its downtime.
FAULTS = {"503": 0.02, "reset": 0.003, "lost": 0.003}
# A process is recognized by this part of its command line.
_MARKS = {WORKER: "ray::", RAYLET: "raylet/raylet", CONTROL: "gcs/gcs_server"}
_MARKER = ".done.json"
_PATIENCE_SECONDS = 20.0


@dataclass
class Build:
    """One build and its kills."""

    output: str
    kills: list[str] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    committed: dict[str, float] = field(default_factory=dict)
    """Marker -> time of writing, as first seen after a restart."""


def published(output: str) -> dict[str, str]:
    """Path below ``output`` -> SHA-256, without the work folder."""
    uris = {info.uri.removeprefix(output).lstrip("/"): info.uri for info in storage.list_files(output)}
    names = [name for name in uris if not name.startswith("work/")]

    def digest(name: str) -> str:
        return hashlib.sha256(storage.read_bytes(uris[name])).hexdigest()

    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def markers(output: str) -> dict[str, float]:
    """Every marker of a finished unit, with the time when it was written."""
    found = storage.list_files(storage.join(output, "work"))
    return {info.uri: info.modified for info in found if info.uri.endswith(_MARKER)}


def descendants(pid: int) -> dict[int, str]:
    """Pid -> command line of every process below ``pid``."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: dict[int, str] = {}
    for child in parents:
        ancestor = child
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        if ancestor == pid and child != pid:
            try:
                line = (
                    Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[child] = line
    return found


class SecondNode:
    """A Ray node of one CPU that joins the Ray of a job as soon as possible."""

    def __init__(self, job: subprocess.Popen[bytes], log: Path) -> None:
        self._job, self._log = job, log
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._join, daemon=True)
        self._thread.start()

    def _join(self) -> None:
        ray = shutil.which("ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert ray is not None
        while self._job.poll() is None:
            address = self._address()
            if address is not None:
                command = [ray, "start", "--block", f"--address={address}", "--node-ip-address=127.0.0.1"]
                with self._log.open("ab") as sink:
                    self._process = subprocess.Popen(
                        [*command, "--num-cpus=1", "--object-store-memory=100000000"],
                        env=builds.environment(), stdout=sink, stderr=sink, start_new_session=True,
                    )  # fmt: skip
                return
            time.sleep(0.2)

    def _address(self) -> str | None:
        """The address of the control store of the job's Ray, once its raylet reports it."""
        for line in descendants(self._job.pid).values():
            if line.split(" ", 1)[0].endswith(_MARKS[RAYLET]):
                found = re.search(r"--gcs-address=(\S+)", line)
                return found[1] if found else None
        return None

    def kill(self) -> bool:
        """Sends SIGKILL to the raylet, whose workers end with it. Returns false when the node is not up."""
        if self._process is None:
            return False
        found = descendants(self._process.pid)
        raylets = [pid for pid, line in found.items() if line.split(" ", 1)[0].endswith(_MARKS[RAYLET])]
        for pid in raylets:
            _kill(pid)
        return bool(raylets)

    def end(self) -> None:
        """Ends every process of the node, after the end of the job."""
        self._thread.join()
        if self._process is not None:
            for pid in [*descendants(self._process.pid), self._process.pid]:
                _kill(pid)
            self._process.wait()


def strike(
    target: str,
    job: subprocess.Popen[bytes],
    node: SecondNode,
    server: S3Server | None,
    chance: random.Random,
) -> bool:
    """Kills the process that ``target`` names. Returns false if no such process exists now."""
    if target == NODE:
        return node.kill()
    if target == SERVER:
        assert server is not None
        server.kill()
        time.sleep(chance.uniform(0.0, 1.5))
        server.start()
        return True
    if target == JOB:
        everything = [*descendants(job.pid), job.pid]
        for pid in everything:
            _kill(pid)
        return True
    candidates = [pid for pid, line in descendants(job.pid).items() if _MARKS[target] in line]
    if not candidates:
        return False
    _kill(chance.choice(sorted(candidates)))
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_build(
    config: Path, build: Build, kills: int, gap: float, targets: tuple[str, ...],
    server: S3Server | None, chance: random.Random, log: Path,
) -> None:  # fmt: skip
    """Starts the build until it succeeds, with faults in ``kills`` of its starts."""
    began = time.monotonic()
    while True:
        build.starts += 1
        _check_markers(build)
        with log.open("ab") as sink:
            job = subprocess.Popen(
                builds.command(config, "--cpus", "1"),
                env=builds.environment(), cwd=builds.ROOT, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
        node = SecondNode(job, log)
        if len(build.kills) < kills:
            _disturb(job, build, kills, gap, targets, node, server, chance)
        status = job.wait(timeout=900)
        node.end()
        if status == 0 and len(build.kills) >= kills:
            break
        if status == 0 and storage.exists(storage.join(build.output, "manifest.json")):
            break
        if build.starts > kills + 12:
            build.problems.append(f"still failing after {build.starts} starts, last status {status}")
            print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
            break
    _check_markers(build)
    build.seconds = time.monotonic() - began


def _disturb(
    job: subprocess.Popen[bytes], build: Build, kills: int, gap: float, targets: tuple[str, ...],
    node: SecondNode, server: S3Server | None, chance: random.Random,
) -> None:  # fmt: skip
    """Kills one process after another until the job ends or the number of kills is reached."""
    while len(build.kills) < kills:
        deadline = time.monotonic() + chance.expovariate(1 / gap)
        while time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.02)
        target, patience = chance.choice(targets), time.monotonic() + _PATIENCE_SECONDS
        while job.poll() is None:
            if strike(target, job, node, server, chance):
                build.kills.append(target)
                break
            if time.monotonic() > patience:  # it may not come up before this start ends
                target = chance.choice(targets)
            time.sleep(0.1)
        if job.poll() is not None or build.kills[-1] in _FATAL:
            return


def _check_markers(build: Build) -> None:
    """Checks that no earlier marker was written again."""
    now = markers(build.output)
    for uri, written in build.committed.items():
        if uri in now and now[uri] != written:
            build.problems.append(f"{uri}: committed twice")
        if uri not in now:
            build.problems.append(f"{uri}: a committed unit is gone")
    build.committed.update({uri: written for uri, written in now.items() if uri not in build.committed})


@contextmanager
def store(kind: str, folder: Path, chance: random.Random) -> Iterator[tuple[str, S3Server | None]]:
    """Yields the folder or URI below which the builds write. A faulty proxy is in front of a server."""

    def plan(_number: int, _method: str, _path: str) -> str:
        return chance.choices(["pass", *FAULTS], [1 - sum(FAULTS.values()), *FAULTS.values()])[0]

    if kind == "file":
        yield str(folder / "corpora"), None
        return
    server = S3Server(folder / "server")
    (folder / "server").mkdir()
    server.start()
    try:
        with FaultProxy(server.port, plan) as proxy:
            os.environ.update({**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
            yield f"s3://{BUCKET}/chaos", server
            print(json.dumps({"requests": len(proxy.requests), "faults": dict(proxy.done)}), flush=True)
    finally:
        server.stop()


def main() -> int:
    """Prints a JSON line for each build. Returns 1 when a check of one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="kills over all builds")
    parser.add_argument("--per-build", type=int, default=12, help="kills of one build at most")
    parser.add_argument("--gap", type=float, default=0.25, help="mean time between kills, in whole builds")
    parser.add_argument("--storage", choices=TARGETS, default="file")
    parser.add_argument("--minutes", type=float, default=600, help="start no build after these minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="append a Markdown table to this file")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        with store(arguments.storage, folder, random.Random(arguments.seed)) as (root, server):
            undisturbed = Build(f"{root}/undisturbed")
            config = builds.write_config(folder, builds.config(undisturbed.output), "undisturbed.yaml")
            run_build(config, undisturbed, 0, 1.0, (), server, chance, folder / "log")
            wanted = published(undisturbed.output)
            if "manifest.json" not in wanted:
                print((folder / "log").read_text()[-3000:], file=sys.stderr)
                return 1
            done: list[Build] = []
            last = time.monotonic() + 60 * arguments.minutes
            while sum(len(build.kills) for build in done) < arguments.kills and time.monotonic() < last:
                left = arguments.kills - sum(len(build.kills) for build in done)
                build = Build(f"{root}/build-{len(done):03d}")
                config = builds.write_config(folder, builds.config(build.output), f"{len(done)}.yaml")
                kills = min(left, chance.randint(-(-arguments.per_build // 2), arguments.per_build))
                gap = arguments.gap * undisturbed.seconds
                targets = TARGETS[arguments.storage]
                run_build(config, build, kills, gap, targets, server, chance, folder / f"log-{len(done)}")
                if published(build.output) != wanted:
                    build.problems.append("published bytes differ from the undisturbed build")
                done.append(build)
                print(
                    json.dumps({"build": len(done), **vars(build), "committed": len(build.committed)}),
                    flush=True,
                )
    _report(arguments, undisturbed, done)
    return 1 if any(build.problems for build in done) else 0


def _report(arguments: argparse.Namespace, undisturbed: Build, done: list[Build]) -> None:
    kills = Counter(kill for build in done for kill in build.kills)
    bad = [build for build in done if build.problems]
    rows = [f"| {target} killed | {count} |" for target, count in sorted(kills.items())]
    text = "\n".join(
        [
            f"## {arguments.storage}://, seed {arguments.seed}",
            "",
            "| | |",
            "|---|---|",
            *rows,
            f"| builds | {len(done)} |",
            f"| starts | {sum(build.starts for build in done)} |",
            f"| units committed before a restart and kept | {sum(len(build.committed) for build in done)} |",
            f"| units committed twice, or bytes that differ | {sum(len(build.problems) for build in done)} |",
            f"| builds equal to the undisturbed one to the byte | {len(done) - len(bad)} of {len(done)} |",
            f"| seconds of an undisturbed build, of a disturbed one (mean) | {undisturbed.seconds:.0f}, "
            f"{sum(build.seconds for build in done) / max(len(done), 1):.0f} |",
            "",
        ]
    )
    print(text)
    if arguments.table:
        with arguments.table.open("a") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
