"""How long a process has spent compiling, apart from the work that waits for it."""

import importlib.util
import threading
import time
from typing import Any

from torch._dynamo.callback import CallbackArgs, callback_handler


class CompileClock:
    """Counts from its making to ``stop``: torch.compile, and Triton kernels that are written by hand.

    torch calls back when it begins to compile in a process where nothing is being compiled, and when all of
    it has ended, whatever the thread; tracing, Inductor, its kernels and its cache are between the two. A
    kernel that Triton compiles meanwhile is a part of that and not counted again. Trial runs of an autotuner
    are work, not compiling.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._seconds = 0.0
        self._compilation: Any = None
        self._listener_before: Any = None
        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)
        if importlib.util.find_spec("triton") is not None:
            from triton import knobs

            self._compilation, self._listener_before = knobs.compilation, knobs.compilation.listener
            self._compilation.listener = self._hear_triton

    @property
    def seconds(self) -> float:
        """Time spent so far; of a compilation that goes on, until now."""
        with self._lock:
            running = 0.0 if self._begun is None else time.monotonic() - self._begun
            return self._seconds + running

    def stop(self) -> None:
        """Counts no more. Compiling that is under way is counted until now."""
        # torch._dynamo.reset forgets everybody's callbacks.
        if self._begin in callback_handler.start_callbacks:
            callback_handler.remove_start_callback(self._begin)
        if self._end in callback_handler.end_callbacks:
            callback_handler.remove_end_callback(self._end)
        if self._compilation is not None:
            self._compilation.listener = self._listener_before
            self._compilation = None
        with self._lock:
            if self._begun is not None:
                self._seconds += time.monotonic() - self._begun
                self._begun = None

    def _begin(self, _: CallbackArgs) -> None:
        with self._lock:
            self._begun = time.monotonic()

    def _end(self, _: CallbackArgs) -> None:
        with self._lock:
            if self._begun is not None:
                self._seconds += time.monotonic() - self._begun
                self._begun = None

    def _hear_triton(self, **event: Any) -> None:
        """Triton tells the time of each kernel in microseconds, also of one from its cache."""
        with self._lock:
            if self._begun is None:
                self._seconds += event["times"].total / 1e6
        if self._listener_before is not None:
            self._listener_before(**event)
