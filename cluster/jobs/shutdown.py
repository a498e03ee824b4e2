"""Graceful shutdown on SIGTERM and Ctrl-C (SIGINT), which both jobs treat alike."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_STOPPED = 128 + signal.SIGTERM
"""Exit status of a job that ended because of a signal. The same command resumes it."""

_requested = threading.Event()
_nothing_to_lose = threading.Event()


class Interrupted(BaseException):
    """A signal arrived when the job had nothing to save. Not an Exception, so that no library catches it."""


def install() -> None:
    """Makes the signals set a flag, every time they arrive. Call it in the main thread."""
    _requested.clear()
    for number in SIGNALS:
        signal.signal(number, _on_signal)


@contextmanager
def preserved() -> Iterator[None]:
    """Restores the handlers of `install` if the code inside replaces them. Ray's own handler exits.

    Raises Interrupted if SIGTERM arrives meanwhile.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if in_main and signal.getsignal(number) is _on_signal]
    try:
        yield
    except SystemExit as error:
        if ours and error.code == signal.SIGTERM:
            _requested.set()
            raise Interrupted from error
        raise
    finally:
        for number in ours:
            signal.signal(number, _on_signal)


@contextmanager
def handled() -> Iterator[None]:
    """Handles the signals inside the block if this is the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def requested() -> bool:
    """Whether this process got a signal to stop."""
    return _requested.is_set()


def raise_if_requested(place: str = "") -> None:
    """Raises Interrupted with the text ``place`` when this process got a signal to stop."""
    if requested():
        raise Interrupted(place)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block, a signal immediately raises Interrupted in the main thread.

    For work that may take minutes and can be repeated, such as the start of a job. Raises Interrupted on
    entry if a signal has arrived before. Has no effect in threads other than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _nothing_to_lose.set()
    try:
        if requested():
            raise Interrupted
        yield
    finally:
        _nothing_to_lose.clear()


def _on_signal(number: int, frame: FrameType | None) -> None:
    del number, frame
    _requested.set()
    if _nothing_to_lose.is_set():
        # Only once, because a second signal must not interrupt the cleanup.
        _nothing_to_lose.clear()
        raise Interrupted
