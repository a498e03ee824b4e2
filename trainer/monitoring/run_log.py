"""Writes the log of a run: JSON lines of every rank, and TensorBoard of rank 0.

RUN/metrics/attempt-000003/rank-00000.jsonl has one record of trainer/monitoring/records.py in each line.
trainer/monitoring/history.py reads the logs of all attempts as one history.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import scratch, storage
from cluster.storage import local_files
from schemas.errors import StorageError
from trainer.monitoring.records import Evaluated, LogRecord, StepRecord, numbers
from trainer.monitoring.trackers import TrackerThread

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

UPLOAD_SECONDS = 30.0
SEGMENT_BYTES = 4 << 20
"""Size at which the log on remote storage continues in a new file."""


class _Lines:
    """A file of complete lines. Removes the part of a line that a full disk took."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, line: bytes) -> None:
        """Appends a line. Raises OSError when the disk does not take all of it."""
        written = self._file.write(line)
        if written != len(line):
            self._file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    @property
    def size(self) -> int:
        """Bytes of the complete lines."""
        return self._size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunLog:
    """The log of one rank in one attempt.

    A line that a full disk does not take is lost and counted in ``failed_writes``. The first lost line is
    logged. Training continues, because only failed checkpoints end a run.

    For a run on remote storage, the files are written to a local folder and uploaded every half minute and at
    the end. A failed upload is logged, counted in ``failed_uploads``, and retried with the next one. An
    object cannot be appended to, so the log continues in a new file (rank-00000-0001.jsonl) after a few
    megabytes. Otherwise each upload would send the whole log again. Complete and uploaded files are deleted
    locally. Metrics by language cover all ranks and are in the file of rank 0 alone. ``on_record`` gets
    every record, for example to print a progress line, and ``trackers`` send theirs on.
    """

    def __init__(
        self,
        run_uri: str,
        attempt: int,
        rank: int,
        *,
        tensorboard: bool = True,
        first_step: int = 0,
        on_record: Callable[[LogRecord], None] | None = None,
        trackers: Sequence[TrackerThread] = (),
    ) -> None:
        self._on_record, self._trackers = on_record, trackers
        self._remote = storage.scheme(run_uri) != "file"
        self._run_uri = run_uri
        self._cleanup = ExitStack()
        if self._remote:
            self._folder = self._cleanup.enter_context(scratch.folder("log"))
        else:
            self._folder = local_files.path_of(run_uri)
        self._rank, self._segment = rank, 0
        self._path = self._folder / "metrics" / f"attempt-{attempt:06d}" / f"rank-{rank:05d}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = _Lines(self._path)
        self._board: SummaryWriter | None = None
        self._board_folder = self._folder / "tensorboard"
        if tensorboard and rank == 0:
            # TensorBoard drops the points from this step on. That of the checkpoint itself stays.
            self._board = _new_board(self._board_folder, purge_step=first_step + 1)
        self._complete: set[Path] = set()
        """Files that no longer grow."""
        self._uploaded_bytes: dict[Path, int] = {}
        """Size of each file at its last upload, for the uploading thread only."""
        self._uploader = ThreadPoolExecutor(1, thread_name_prefix="log-upload") if self._remote else None
        self._upload: Future[None] | None = None
        self._last_upload = time.monotonic()
        self.failed_uploads = 0
        self.failed_writes = 0

    def write(self, record: LogRecord) -> None:
        """Writes a record. The numbers of steps and held-out metrics also go to TensorBoard."""
        content = record.to_json()
        if isinstance(record, StepRecord) and self._rank != 0:
            del content["languages"]
        self._append(content)
        if isinstance(record, StepRecord):
            self._draw(content, record.step)
        elif isinstance(record, Evaluated):
            self._draw(record.groups(), record.step)
        for tracker in self._trackers:
            tracker.write(record)
        if self._on_record is not None:
            self._on_record(record)
        if self._uploader is not None:
            try:
                self._start_new_files()
            except OSError as error:
                self._count_lost(error)
            if time.monotonic() - self._last_upload > UPLOAD_SECONDS:
                self._upload_soon(self._uploader)

    def close(self) -> None:
        """Writes and uploads the rest. A last upload that fails is only logged, because the run has ended."""
        for tracker in self._trackers:
            tracker.close()
        if self._board is not None:
            try:
                self._board.close()
            except OSError as error:
                self._count_lost(error)
        self._lines.close()
        if self._uploader is not None:
            try:
                self._uploader.submit(self._send).result()
            except StorageError as error:
                self.failed_uploads += 1
                logger.warning("the end of the log could not be uploaded: %s", error)
            self._uploader.shutdown()
        self._cleanup.close()

    @property
    def failed_tracker_writes(self) -> int:
        """Records that the trackers did not take."""
        return sum(tracker.failures for tracker in self._trackers)

    def _append(self, content: dict[str, Any]) -> None:
        try:
            self._lines.write((json.dumps(content, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            self._count_lost(error)

    def _start_new_files(self) -> None:
        if self._lines.size > SEGMENT_BYTES:
            following = self._path.with_name(f"rank-{self._rank:05d}-{self._segment + 1:04d}.jsonl")
            lines = _Lines(following)
            self._lines.close()
            self._complete.add(self._path)
            self._lines, self._path, self._segment = lines, following, self._segment + 1
        if self._board is None:
            return
        files = [path for path in self._board_folder.iterdir() if path not in self._complete]
        if sum(path.stat().st_size for path in files) > SEGMENT_BYTES:
            self._board.close()
            self._complete |= set(files)
            self._board = _new_board(self._board_folder)

    def _draw(self, content: dict[str, Any], step: int) -> None:
        if self._board is None:
            return
        try:
            for name, value in numbers(content).items():
                self._board.add_scalar(name, value, step)
            self._board.flush()
        except OSError as error:
            self._count_lost(error)

    def _count_lost(self, error: OSError) -> None:
        self.failed_writes += 1
        if self.failed_writes == 1:
            logger.warning("%s: log lines are being lost: %s", self._folder, error.strerror)

    def _upload_soon(self, pool: ThreadPoolExecutor) -> None:
        if self._upload is not None:
            if not self._upload.done():
                return
            error = self._upload.exception()
            if error is not None:
                self.failed_uploads += 1
                logger.warning("could not upload the log, will retry: %s", error)
                if not isinstance(error, StorageError):
                    raise error
        self._last_upload = time.monotonic()
        self._upload = pool.submit(self._send)

    def _send(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            if not path.is_file() or path.name.startswith("."):
                continue
            # Checked before the size: a complete file no longer grows, so its upload will be complete.
            complete, size = path in self._complete, path.stat().st_size
            if self._uploaded_bytes.get(path) != size:
                storage.upload_file(
                    path, storage.join(self._run_uri, path.relative_to(self._folder).as_posix())
                )
                self._uploaded_bytes[path] = size
            if complete:
                path.unlink()
                del self._uploaded_bytes[path]


def _new_board(folder: Path, purge_step: int | None = None) -> "SummaryWriter":
    # Only rank 0 needs TensorBoard, which takes half a second to import.
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)
