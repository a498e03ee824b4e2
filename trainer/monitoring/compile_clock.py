"""Measures how long a process spends compiling."""

import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._dynamo.callback import CallbackArgs


class CompileClock:
    """Measures torch.compile and hand-written Triton kernels, from its construction to ``stop``.

    torch calls back when the first compilation of a process starts and when the last one ends, in whichever
    thread. Tracing, Inductor, its kernels and its cache fall between the two. A kernel that Triton compiles
    in this time is not counted again. The trial runs of an autotuner do not count as compiling.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started_at: float | None = None
        self._seconds = 0.0
        self._compilation: Any = None
        self._listener_before: Any = None
        # Here, because the import takes seconds, and only a process that trains needs it.
        from torch._dynamo.callback import callback_handler

        self._callbacks = callback_handler
        self._callbacks.register_start_callback(self._on_start)
        self._callbacks.register_end_callback(self._on_end)
        if importlib.util.find_spec("triton") is not None:
            from triton import knobs

            self._compilation, self._listener_before = knobs.compilation, knobs.compilation.listener
            self._compilation.listener = self._on_triton_event

    @property
    def seconds(self) -> float:
        """Time spent so far, including that of a running compilation."""
        with self._lock:
            running = 0.0 if self._started_at is None else time.monotonic() - self._started_at
            return self._seconds + running

    def stop(self) -> None:
        """Ends the measurement. A running compilation counts until now."""
        # torch._dynamo.reset may have removed the callbacks.
        if self._on_start in self._callbacks.start_callbacks:
            self._callbacks.remove_start_callback(self._on_start)
        if self._on_end in self._callbacks.end_callbacks:
            self._callbacks.remove_end_callback(self._on_end)
        if self._compilation is not None:
            self._compilation.listener = self._listener_before
            self._compilation = None
        with self._lock:
            if self._started_at is not None:
                self._seconds += time.monotonic() - self._started_at
                self._started_at = None

    def _on_start(self, _: "CallbackArgs") -> None:
        with self._lock:
            self._started_at = time.monotonic()

    def _on_end(self, _: "CallbackArgs") -> None:
        with self._lock:
            if self._started_at is not None:
                self._seconds += time.monotonic() - self._started_at
                self._started_at = None

    def _on_triton_event(self, **event: Any) -> None:
        """Triton reports the time of each kernel in microseconds, also of one from its cache."""
        with self._lock:
            if self._started_at is None:
                self._seconds += event["times"].total / 1e6
        if self._listener_before is not None:
            self._listener_before(**event)
