"""Limits the CPU time of single calls and interrupts them when it runs out.

The limit is CPU time rather than wall time, so that a busy or suspended machine does not change what a build
keeps. In the main thread of a process (where Ray runs its tasks) the kernel's virtual timer sends
SIGVTALRM and its handler raises, which interrupts even a regular expression. For any other thread, a
watchdog thread reads its CPU clock and raises an exception in it at the next bytecode instruction.
"""

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


class TimeLimitError(BaseException):
    """A call exceeded its time limit. An ``except Exception`` inside the call does not catch it."""


class TimeLimit:
    """Limits each call made through ``call`` inside the ``with`` block.

    The same thread must enter, use and leave the block. In the main thread the block handles SIGVTALRM.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._main = threading.current_thread() is threading.main_thread()
        self._armed = False
        self._handler_before: Any = None
        self._watcher: _Watcher | None = None

    def __enter__(self) -> "TimeLimit":
        if self._main:
            self._handler_before = signal.signal(signal.SIGVTALRM, self._time_is_up)
        else:
            self._watcher = _Watcher(self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGVTALRM, self._handler_before)
        if self._watcher is not None:
            self._watcher.stop()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns ``function(*arguments)``. Raises TimeLimitError when the call exceeds the limit."""
        if self._watcher is not None:
            return self._watcher.call(function, *arguments)
        self._armed = True
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)
        try:
            return function(*arguments)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _time_is_up(self, _number: int, _frame: FrameType | None) -> None:
        # A signal that arrives just after the call must not interrupt the caller.
        if self._armed:
            raise TimeLimitError


class _Watcher:
    """A thread that raises an exception in the thread that created it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._deadline: float | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._run, name="time-limit", daemon=True)
        self._watch.start()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        self._deadline = time.clock_gettime(self._clock) + self._seconds
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._deadline = None

    def stop(self) -> None:
        self._stopped.set()
        self._watch.join()

    def _run(self) -> None:
        pause = min(1.0, max(0.01, self._seconds / 10))
        while not self._stopped.wait(pause):
            # The watched call cannot end while this thread holds the lock, so the exception always hits it.
            with self._lock:
                if self._deadline is not None and time.clock_gettime(self._clock) >= self._deadline:
                    self._deadline = None
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self._thread), ctypes.py_object(TimeLimitError)
                    )
