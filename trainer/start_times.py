"""How long a start took, in parts, and whether what was compiled came from the cache.

The cache of torch.compile holds machine code, which a process runs as it finds it. So it lies in a folder
that the config names and that nobody but the trainers may write, never among the run's own files, from
which nothing is loaded that could be code.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch

from schemas.errors import ConfigError
from trainer.compile_clock import CompileClock

_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class StartTimes:
    """Seconds from the begin of the process to the first step: process, load, seek, first_step.

    process: imports, waiting for the other ranks. load: data, network, checkpoint. seek: until the first
    batch is there. compile: what the step waited for compilers. first_step: the rest of the step.
    """

    def __init__(self) -> None:
        self._compiling = CompileClock()
        self._parts = {"process_seconds": round(_process_age(), 3)}
        self._last: float | None = time.monotonic()

    @property
    def pending(self) -> bool:
        """Whether the first step is yet to end."""
        return self._last is not None

    def mark(self, part: str) -> None:
        """Ends ``part``; does nothing after the first step."""
        if self._last is not None:
            now = time.monotonic()
            self._parts[f"{part}_seconds"] = round(now - self._last, 3)
            self._last = now

    def finish(self, device: torch.device) -> dict[str, Any]:
        """All parts, their sum, and what the compiler found in its cache; waits for the device."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._compiling.stop()
        self.mark("first_step")
        self._last = None
        # Ahead of the step nothing is compiled; what is compiled beside it, is not waited for.
        compiling = round(min(self._compiling.seconds, self._parts["first_step_seconds"]), 3)
        rest = round(self._parts.pop("first_step_seconds") - compiling, 3)
        self._parts |= {"compile_seconds": compiling, "first_step_seconds": rest}
        total = round(sum(self._parts.values()), 3)
        return {**self._parts, "total_seconds": total, **compile_counts()}


def use_compile_cache(folder: str | None) -> None:
    """Lets torch.compile keep what it makes in ``folder``, for the processes after this one.

    None leaves torch's own choice, a temporary folder of this host. Raises ConfigError when it cannot be
    made or written.
    """
    if folder is None:
        return
    if "://" in folder:
        raise ConfigError(
            f"compile_cache: {folder} is not a folder; it holds code, and is not kept in a store"
        )
    path = Path(folder).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"compile_cache: {folder}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"compile_cache: {folder}: not writable")
    os.environ[_CACHE_VARIABLE] = str(path)


def compile_counts() -> dict[str, int]:
    """Graphs that were compiled and graphs that came from the cache, in this process."""
    counts = torch._dynamo.utils.counters["inductor"]
    return {
        "graphs_compiled": int(counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"]),
        "graphs_from_cache": int(counts["fxgraph_cache_hit"]),
    }


def _process_age() -> float:
    """Seconds since this process began; 0 where /proc does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    # Field 22 of proc(5), in ticks since the host began; the first two are before the bracket.
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
