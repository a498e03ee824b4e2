"""Measures the parts of a start, and how much compiled code came from the cache.

The cache of torch.compile holds machine code that a process runs unchecked. So it is in a folder that the
config names and that only the trainers may write to. It is never among the files of the run, because no code
is loaded from those.
"""

import os
import time
from pathlib import Path

import torch

from schemas.errors import ConfigError
from trainer.monitoring.compile_clock import CompileClock
from trainer.monitoring.records import Ready

_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_TRITON_CACHE_VARIABLE = "TRITON_CACHE_DIR"


class StartTimes:
    """Measures the time from the start of the process to the end of the first step, see Ready.

    ``mark`` ends the parts load and seek. ``finish`` ends the first step.
    """

    def __init__(self) -> None:
        self._compiling = CompileClock()
        self._process = round(_process_age(), 3)
        self._parts: dict[str, float] = {}
        self._last: float | None = time.monotonic()

    @property
    def pending(self) -> bool:
        """Whether the first step has not ended yet."""
        return self._last is not None

    def mark(self, part: str) -> None:
        """Ends ``part``. Does nothing after the first step."""
        if self._last is not None:
            now = time.monotonic()
            self._parts[part] = round(now - self._last, 3)
            self._last = now

    def finish(self, step: int, device: torch.device) -> Ready:
        """The record of the start, after the first step, which is number ``step``. Waits for the device."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._compiling.stop()
        self.mark("first_step")
        self._last = None
        parts = self._parts
        # Nothing compiles before the step, and the step does not wait for what compiles in parallel.
        compiling = round(min(self._compiling.seconds, parts["first_step"]), 3)
        compiled, cached = compile_counts()
        return Ready(
            step=step,
            process_seconds=self._process,
            load_seconds=parts["load"],
            seek_seconds=parts["seek"],
            compile_seconds=compiling,
            first_step_seconds=round(parts["first_step"] - compiling, 3),
            total_seconds=round(self._process + sum(parts.values()), 3),
            graphs_compiled=compiled,
            graph_breaks=sum(torch._dynamo.utils.counters["graph_break"].values()),
            graphs_from_cache=cached,
        )


def use_compile_cache(folder: str | None) -> None:
    """Makes torch.compile keep its code in ``folder`` for later processes.

    None leaves torch's own choice, a temporary folder of this host. Raises ConfigError when the folder
    cannot be created or is not writable.
    """
    if folder is None:
        return
    if "://" in folder:
        raise ConfigError(
            f"compile_cache: {folder} is not a local folder; compiled code is not kept in an object store"
        )
    path = Path(folder).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"compile_cache: {folder}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"compile_cache: {folder}: not writable")
    os.environ[_CACHE_VARIABLE] = str(path)
    os.environ.setdefault(_TRITON_CACHE_VARIABLE, str(path / "triton"))


def compile_counts() -> tuple[int, int]:
    """Graphs that this process compiled, and graphs that it took from the cache."""
    counts = torch._dynamo.utils.counters["inductor"]
    compiled = int(counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"])
    return compiled, int(counts["fxgraph_cache_hit"])


def _process_age() -> float:
    """Seconds since this process started, or 0 without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    # Field 22 of proc(5): clock ticks since the host booted. The first two fields are before the bracket.
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
