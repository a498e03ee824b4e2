"""Checks whether a process of this host is still alive, even if its id was reused."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def process_of_this_host() -> dict[str, Any]:
    """What identifies this process: its id, its start time, and its process namespace."""
    process = os.getpid()
    return {"process": process, "process_start": _status(process)[1], "process_space": _space()}


def is_dead(details: Mapping[str, Any]) -> bool:
    """Whether the process that ``details`` (from `process_of_this_host`) describes has certainly ended.

    False when it belongs to another host or container, or when this system cannot tell.
    """
    space, process = _space(), details.get("process")
    if space is None or details.get("process_space") != space or not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    state, start = _status(process)
    known = details.get("process_start")
    return state in ("Z", "X") or (isinstance(known, int) and start is not None and start != known)


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
