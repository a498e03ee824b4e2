"""How much memory this process has held at most."""

from pathlib import Path


def peak_resident_bytes() -> int:
    """The highest resident size of this program since it was started, in bytes (Linux: `VmHWM`).

    Not `getrusage`'s `ru_maxrss`: Linux counts there what the process was before `exec` too, so a small
    program started by a large one inherits the figure of its parent.

    Raises:
        OSError: the system has no `/proc`.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM line")
