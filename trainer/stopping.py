"""SIGTERM as a wish to stop: the loop saves a checkpoint and ends, all ranks together."""

import signal
import threading
from types import FrameType

_wanted = threading.Event()


def install() -> None:
    """Makes SIGTERM set the flag, however often it comes. Call it in the main thread."""
    _wanted.clear()
    signal.signal(signal.SIGTERM, _on_signal)


def wanted() -> bool:
    """Whether this process has been told to end."""
    return _wanted.is_set()


def _on_signal(number: int, frame: FrameType | None) -> None:
    del number, frame
    _wanted.set()
