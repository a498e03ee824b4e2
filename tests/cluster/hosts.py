"""Simulates hosts on one machine. Each has only its own network, /tmp, process table and name.

A host is a network namespace on a bridge, with its processes in their own mount and PID namespaces. It sees
the disk read-only, like an image, and no other host sees its /tmp. Hosts share only what they send over the
network. Killing the first process of a host ends all of its processes immediately, like a power cut. Needs
root, and the programs `ip` and `unshare` (Debian: iproute2, util-linux).
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.checkout import ROOT

PROGRAMS = (ROOT, Path(sys.prefix), Path(sys.base_prefix))
_SCRIPT = (
    "hostname {name} && {hold} mount -t tmpfs -o size=3g tmpfs /tmp {give} && mount -t tmpfs tmpfs /dev/shm"
    ' && mount -o remount,bind,ro / && ip link set lo up && cd /tmp && exec "$@"'
)


def script(name: str, programs: Iterable[Path]) -> str:
    """A script that turns a new set of namespaces into a host, and then runs its arguments.

    Folders of ``programs`` in /tmp stay visible, read-only, in the host's own /tmp.
    """
    inside = {path.resolve() for path in programs if path.resolve().is_relative_to("/tmp")}
    outer = [str(path) for path in sorted(inside) if not inside.intersection(path.parents)]
    hold = give = ""
    for number, folder in enumerate(map(shlex.quote, outer)):
        hold += f"mkdir /mnt/{number} && mount --bind {folder} /mnt/{number} && "
        give += f" && mkdir -p {folder} && mount --move /mnt/{number} {folder}"
        give += f" && mount -o remount,bind,ro {folder}"
    return _SCRIPT.format(name=name, hold=f"mount -t tmpfs tmpfs /mnt && {hold}" if outer else "", give=give)


def missing() -> str | None:
    """What this machine lacks, or None."""
    if os.geteuid() != 0:
        return "creating network namespaces requires root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install iproute2 util-linux"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else f"cannot create namespaces: {probe.stderr.decode().strip()}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """One host with an address on the bridge."""

    def __init__(self, name: str, address: str, bridge: str) -> None:
        self.name, self.address = name, address
        self._process: subprocess.Popen[bytes] | None = None
        near, far = f"{name}-n", f"{name}-f"
        _ip("netns", "add", name)
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", near, "master", bridge, "up")
        _ip("link", "set", far, "netns", name, "name", "eth0")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "default", "via", address.rsplit(".", 1)[0] + ".1")

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        programs: Iterable[Path] = PROGRAMS,
    ) -> None:
        """Starts the host's only command. Its child processes die with it."""
        words = [
            "ip", "netns", "exec", self.name,
            "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child",
            "sh", "-c", script(self.name, programs), "sh", *command,
        ]  # fmt: skip
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                words, env=dict(environment), stdout=file, stderr=file, start_new_session=True, cwd="/"
            )

    @property
    def running(self) -> bool:
        """Whether the command is still running."""
        return self._process is not None and self._process.poll() is None

    def runs(self, words: str) -> bool:
        """Whether a process of the host has ``words`` in its title."""
        if self._process is None:
            return False
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    return True
        return False

    def kill(self) -> None:
        """Simulates a power cut. Ends every process of the host, and removes its network and /tmp."""
        if self._process is not None:
            # The parent of the PID namespace. With --kill-child the namespace ends with it.
            with suppress(ProcessLookupError):  # it has already exited
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Ends the host and removes its network."""
        self.kill()
        _ip("netns", "del", self.name)


class Network:
    """A bridge with hosts. This process is at ``gateway``."""

    def __init__(self, bridge: str, subnet: str) -> None:
        self._bridge, self._subnet = bridge, subnet
        self.gateway = f"{subnet}.1"
        self.hosts: dict[str, Host] = {}

    def add(self, name: str) -> Host:
        """Adds a host with the next address."""
        number = 10 + len(self.hosts)
        host = Host(f"{self._bridge}-{name}"[:12], f"{self._subnet}.{number}", self._bridge)
        self.hosts[name] = host
        return host


@contextmanager
def network() -> Iterator[Network]:
    """A bridge that is removed with all its hosts. Name and addresses depend on this process."""
    number = os.getpid() % 60000
    bridge, subnet = f"bm{number}", f"10.{200 + number // 250 // 250}.{number // 250 % 250}"
    _ip("link", "add", bridge, "type", "bridge")
    made = Network(bridge, subnet)
    try:
        _ip("addr", "add", f"{made.gateway}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        yield made
    finally:
        for host in made.hosts.values():
            host.remove()
        _ip("link", "del", bridge)
