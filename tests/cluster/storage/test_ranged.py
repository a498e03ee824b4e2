"""Streams over range requests."""

from typing import IO

import pytest

from cluster.storage.ranged import ResumingStream


def test_a_stream_whose_source_cannot_be_opened_is_closed_without_an_error() -> None:
    """Python closes every stream that it deletes. From 3.13 on it prints the error of such a close."""
    streams: list[ResumingStream] = []

    class Kept(ResumingStream):
        def __init__(self) -> None:
            streams.append(self)
            super().__init__(self._missing, lambda _: False, "s3://bucket/missing")

        def _missing(self, position: int) -> IO[bytes]:
            raise FileNotFoundError(position)

    with pytest.raises(FileNotFoundError):
        Kept()
    streams[0].close()
    assert streams[0].closed
