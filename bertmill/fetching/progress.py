"""The progress, rate and ETA of a fetch."""

import threading
import time

from pipeline.engine.progress import clock


class FetchProgress:
    """Counts files and bytes. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._files_done = 0
        self._bytes = 0
        self._resumed = 0
        self._started = self._last_line = time.monotonic()

    def expect(self, name: str, size: int) -> None:
        """Adds a file of ``size`` bytes, 0 if the server does not report the size."""
        with self._lock:
            self._sizes[name] = size

    def resume(self, size: int) -> None:
        """Counts bytes that an earlier run has fetched."""
        with self._lock:
            self._bytes += size
            self._resumed += size

    def advance(self, size: int) -> None:
        """Counts received bytes (negative when a download restarts)."""
        with self._lock:
            self._bytes += size

    def file_done(self) -> None:
        """Counts a file that is checked and has its final name."""
        with self._lock:
            self._files_done += 1

    def is_due(self, seconds: float) -> bool:
        """Whether files are expected and the last line is ``seconds`` ago."""
        return bool(self._sizes) and time.monotonic() - self._last_line >= seconds

    def line(self) -> str:
        """Files, bytes, rate and ETA.

        The ETA needs the sizes of all files.
        """
        with self._lock:
            now = time.monotonic()
            self._last_line = now
            total = sum(self._sizes.values()) if all(self._sizes.values()) else 0
            rate = max(self._bytes - self._resumed, 0) / max(now - self._started, 1e-9)
            left = max(total - self._bytes, 0)
            amount = f"{self._bytes / 1e9:,.2f}" + (f" of {total / 1e9:,.2f}" if total else "") + " GB"
            eta = f", ETA {clock(left / rate)}" if total and rate else ""
            return f"{self._files_done} of {len(self._sizes)} files, {amount}, {rate / 1e6:,.1f} MB/s{eta}"
