"""A local disk cache for row groups of remote shards.

All ranks of a node share the folder. Each file carries a checksum. A damaged file is deleted, and its row
group is read from the source again. Above its size limit, the cache deletes the least recently used files.
"""

import contextlib
import hashlib
import logging
import os
import re
import secrets
import threading
import time
from pathlib import Path

import pyarrow as pa

from schemas.errors import ConfigError

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 16
_SUFFIX = ".rows"
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}")
_STALE_SECONDS = 3600.0
# Eviction frees space down to this share of the limit, so that it does not run for every file.
_EVICT_TO = 0.9


class DiskCache:
    """Tables by key in ``folder``, at most ``limit`` bytes plus those being written."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"data.disk_cache: {folder}: {error.strerror}") from error
        self._sweep()
        self._lock = threading.Lock()
        self._used = sum(size for _, size, _ in self._files())
        self.hits = self.misses = self.damaged = self.refused = 0

    def get(self, key: str) -> pa.Table | None:
        """The table stored under ``key``, or None."""
        path = self._path(key)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            self.misses += 1
            return None
        except OSError as error:
            self.damaged += 1
            logger.warning("%s: not readable, reading from the source: %s", path, error.strerror)
            return None
        if raw[:_DIGEST_BYTES] != _digest(raw[_DIGEST_BYTES:]):
            self.damaged += 1
            logger.warning("%s: damaged, reading from the source", path)
            path.unlink(missing_ok=True)
            return None
        self.hits += 1
        with contextlib.suppress(FileNotFoundError):  # another rank has just evicted it
            os.utime(path)
        return pa.ipc.open_stream(pa.py_buffer(raw)[_DIGEST_BYTES:]).read_all()

    def put(self, key: str, table: pa.Table) -> None:
        """Stores ``table``. A failed write is logged and counted, and does no harm."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        payload = sink.getvalue().to_pybytes()
        temporary = self._folder / f".{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(_digest(payload) + payload)
            temporary.replace(self._path(key))
        except OSError as error:
            self.refused += 1
            logger.warning("%s: could not write to the disk cache: %s", temporary.parent, error.strerror)
            with contextlib.suppress(OSError):  # if the disk became read-only, _sweep deletes it later
                temporary.unlink(missing_ok=True)
            return
        with self._lock:
            self._used += _DIGEST_BYTES + len(payload)
            if self._used > self._limit:
                self._evict()

    def _sweep(self) -> None:
        """Deletes unfinished files that are so old that no running process can still be writing them."""
        for path in self._folder.glob(".*"):
            with contextlib.suppress(FileNotFoundError):
                if _TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    def _evict(self) -> None:
        """Counts again, because other ranks also write here, and deletes the least recently used files."""
        files = sorted(self._files())
        self._used = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._used <= _EVICT_TO * self._limit:
                return
            path.unlink(missing_ok=True)
            self._used -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        files = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                files.append((state.st_mtime, state.st_size, path))
        return files

    def _path(self, key: str) -> Path:
        return self._folder / (hashlib.blake2b(key.encode(), digest_size=16).hexdigest() + _SUFFIX)


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
