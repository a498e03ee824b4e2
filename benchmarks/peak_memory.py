"""The peak memory of this process."""

from pathlib import Path


def peak_resident_bytes() -> int:
    """The highest resident size of this program since it was started, in bytes (Linux: `VmHWM`).

    In `ru_maxrss` of `getrusage`, Linux includes the process before `exec`, so a small program that a large
    one has started inherits the figure of its parent.

    Raises:
        OSError: the system has no `/proc`.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM line")
