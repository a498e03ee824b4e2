"""File objects over range requests: a seekable one, and a forward stream that resumes."""

import io
import re
from collections.abc import Callable
from typing import IO, Any

from cluster.storage import retries

BUFFER_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def check_range(content_range: str | None, start: int, length: int | None, received: int, what: str) -> None:
    """Raises HalfAnswerError unless a response has ``length`` bytes from ``start``, or fewer at the end.

    ``content_range`` is the response's header. A server without support for ranges omits it and sends the
    whole file. ``length`` None means everything from ``start`` on.
    """
    match = _CONTENT_RANGE.match(content_range or "")
    begin = int(match[1]) if match else 0
    if begin != start:
        raise retries.HalfAnswerError(
            f"{what}: requested bytes from {start}, but the response starts at {begin}"
        )
    if length is None or not match:
        return
    end = start + length if match[2] == "*" else min(start + length, int(match[2]))
    if received != max(0, end - start):
        raise retries.HalfAnswerError(
            f"{what}: requested {end - start} bytes, but the response has {received}"
        )


class RangedFile(io.RawIOBase):
    """A seekable read-only file of ``size`` bytes. Each read is one call of ``read_range(start, length)``.

    Unbuffered, because Parquet plans its own ranges. Wrap it in io.BufferedReader for small reads.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, name: str) -> None:
        super().__init__()
        self._read_range = read_range
        self._size = size
        self._position = 0
        self.name = name

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves the position without a request. Raises ValueError before the start."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fills ``buffer`` with one ranged read. Reads fewer bytes only at the end."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        data = self._read_range(self._position, length)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class ResumingStream(io.RawIOBase):
    """A forward stream that reopens its source at the current byte when the connection breaks.

    Reading a dump takes hours and may pause for minutes, and servers close such connections.
    ``open_at(position)`` returns a file object that starts there.
    """

    def __init__(
        self, open_at: Callable[[int], IO[bytes]], transient: Callable[[BaseException], bool], name: str
    ) -> None:
        super().__init__()
        self._open_at = open_at
        self._transient = transient
        self._position = 0
        self.name = name
        # Set before the source is opened, because Python also closes a stream whose source cannot be opened.
        self._body: IO[bytes] | None = None
        self._body = open_at(0)

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Reads at least one byte, or 0 at the end. Reopens broken connections."""
        view = memoryview(buffer).cast("B")
        attempts = retries.Attempts(f"{self.name}: read at byte {self._position}")
        while True:
            try:
                if self._body is None:
                    self._body = self._open_at(self._position)
                data = self._body.read(len(view))
                break
            except Exception as error:
                if not self._transient(error):
                    raise
                self._drop_body()
                attempts.failed(error)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Closes the connection."""
        self._drop_body()
        super().close()

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()
