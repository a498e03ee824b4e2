"""Runs a check on many items in processes, because Python runs one thread of a process at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

import pyarrow as pa

from schemas.errors import CorpusError

Item = TypeVar("Item")
Result = TypeVar("Result")

BYTES_PER_PROCESS = 64 << 20
"""Stored bytes for which another process is worth its start, which takes a CPU second."""

_check: list[Callable[[Any], Any]] = []
"""The check of this process."""


def usable_cores() -> int:
    """The cores that this process may use. macOS only tells how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    check: Callable[[Item], Result], items: Sequence[Item], stored_bytes: int, cores: int | None = None
) -> Iterator[Result]:
    """The results of ``check``, which must be picklable, in the order of the items.

    Uses ``cores`` processes, by default one for each core. Small work runs in this process. Raises
    CorpusError if the system kills a process.
    """
    most = min(len(items), -(-stored_bytes // BYTES_PER_PROCESS))
    processes = min(most, cores if cores is not None else usable_cores())
    if processes <= 1:
        yield from map(check, items)
        return
    # A fork would copy the locks of Arrow's threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), _start, (check,)) as pool:
        try:
            yield from pool.map(_run, items)
        except BrokenProcessPool as error:
            raise CorpusError(
                f"the system killed a process that checks shards, probably for lack of memory; use fewer than"
                f" {processes} cores (--cores)"
            ) from error


def _start(check: Callable[[Item], Result]) -> None:
    _check.append(check)
    # Every core has a process.
    pa.set_cpu_count(1)


def _run(item: Any) -> Any:
    return _check[0](item)
