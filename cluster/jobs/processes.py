"""Checks whether a process of this host is still alive, even if its id was reused."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class HostProcess:
    """What identifies a process."""

    process: int
    """Its id."""
    process_start: int | None
    """Clock ticks from the boot of the host to its start, or None if unavailable."""
    process_space: str | None
    """Its host and process namespace, or None if unavailable."""

    @staticmethod
    def current() -> "HostProcess":
        """The process that calls this."""
        process = os.getpid()
        return HostProcess(process, _status(process)[1], _space())

    def is_dead(self) -> bool:
        """Whether the process has certainly ended.

        False when it belongs to another host or container, or when this system cannot tell.
        """
        space = _space()
        if space is None or self.process_space != space:
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        state, start = _status(self.process)
        known = self.process_start
        return state in ("Z", "X") or (known is not None and start is not None and start != known)


def _space() -> str | None:
    """The host name, the boot id and the container's process namespace, or None if unavailable.

    Clones of a virtual machine may share the boot id and the namespace, but rarely the host name.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}-{boot}-{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _status(process: int) -> tuple[str | None, int | None]:
    """State letter and start time (in clock ticks since boot) of a process. See /proc/PID/stat in proc(5)."""
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return None, None
    # The name in parentheses may contain any character.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
