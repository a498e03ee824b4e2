"""What a run writes down: JSON lines of every rank, TensorBoard of rank 0, sums turned into figures.

RUN/metrics/attempt-000003/rank-00000.jsonl has one object in a line: ``{"event": ...}`` for what
happened (started, saving, skipped, stopped), and otherwise the figures of the steps since the line before.
A reader who wants one history takes, for each step, the line of the highest attempt.
"""

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from cluster import local_files, scratch, storage
from schemas.errors import StorageError
from trainer.objectives import STATISTICS

log = logging.getLogger(__name__)

Record = dict[str, Any]

UPLOAD_SECONDS = 30.0
SEGMENT_BYTES = 4 << 20
"""Size at which a file that is sent to remote storage is ended and the next one begun."""


class _Lines:
    """A file of whole lines: what could be written of a line in part is taken back."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._whole = path.stat().st_size

    def write(self, line: bytes) -> None:
        """Appends the line. Raises OSError when the disk does not take all of it."""
        written = self._file.write(line)
        if written != len(line):
            self._file.truncate(self._whole)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._whole += written

    @property
    def size(self) -> int:
        """Bytes of the whole lines."""
        return self._whole

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunLog:
    """The log of one rank in one attempt.

    A line that a full disk does not take is lost, counted in ``failed_writes``, and the first one is
    said; training goes on, since whether it may is decided by its checkpoints.

    On remote storage the files are kept locally and sent there every half minute and at the end; an
    upload that fails is logged, counted in ``failed_uploads``, and tried again with the next one. An object
    cannot be added to, so the files are ended at a few megabytes and go on as rank-00000-0001.jsonl: a log
    of weeks would otherwise be sent whole each time. What is sent and ended is removed here.
    The figures by language are those of all ranks and stand in the file of rank 0 alone.
    ``echo`` is called with every record, for a progress line.
    """

    def __init__(
        self,
        run_uri: str,
        attempt: int,
        rank: int,
        *,
        tensorboard: bool = True,
        first_step: int = 0,
        echo: Callable[[Record], None] | None = None,
    ) -> None:
        self._echo = echo
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
            self._board = SummaryWriter(str(self._board_folder), purge_step=first_step)
        self._ended: set[Path] = set()
        """Files that nothing is added to any more."""
        self._sent: dict[Path, int] = {}
        """Bytes of each file when it was sent; only the uploading thread uses it."""
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="log-upload") if self._remote else None
        self._upload: Future[None] | None = None
        self._uploaded = time.monotonic()
        self.failed_uploads = 0
        self.failed_writes = 0

    def event(self, event: str, **fields: Any) -> None:
        """Writes down that something happened."""
        self._write({"event": event, "time": round(time.time(), 3), **fields})

    def figures(self, step: int, record: Record) -> None:
        """Writes the figures after ``step``; numbers go to TensorBoard, one level of groups deep."""
        kept = record if self._rank == 0 else {k: v for k, v in record.items() if k != "languages"}
        self._write({"step": step, "time": round(time.time(), 3), **kept})
        self._draw(record, step)

    def evaluated(self, step: int, held_out: Record) -> None:
        """Writes held-out figures down, and as points under held_out/ in TensorBoard."""
        self.event("evaluated", step=step, held_out=held_out)
        self._draw({"held_out": held_out}, step)

    def close(self) -> None:
        """Writes and sends what is left. Raises StorageError when the last upload fails."""
        if self._board is not None:
            try:
                self._board.close()
            except OSError as error:
                self._lost(error)
        self._lines.close()
        if self._uploads is not None:
            self._uploads.submit(self._send).result()
            self._uploads.shutdown()
        self._cleanup.close()

    def _write(self, record: Record) -> None:
        try:
            self._lines.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            self._lost(error)
        if self._echo is not None:
            self._echo(record)
        if self._uploads is not None:
            try:
                self._end_large_files()
            except OSError as error:
                self._lost(error)
            if time.monotonic() - self._uploaded > UPLOAD_SECONDS:
                self._send_soon(self._uploads)

    def _end_large_files(self) -> None:
        if self._lines.size > SEGMENT_BYTES:
            following = self._path.with_name(f"rank-{self._rank:05d}-{self._segment + 1:04d}.jsonl")
            lines = _Lines(following)
            self._lines.close()
            self._ended.add(self._path)
            self._lines, self._path, self._segment = lines, following, self._segment + 1
        if self._board is None:
            return
        files = [path for path in self._board_folder.iterdir() if path not in self._ended]
        if sum(path.stat().st_size for path in files) > SEGMENT_BYTES:
            self._board.close()
            self._ended |= set(files)
            self._board = SummaryWriter(str(self._board_folder))

    def _draw(self, record: Record, step: int) -> None:
        if self._board is None:
            return
        try:
            for name, value in _numbers(record):
                self._board.add_scalar(name, value, step)
            self._board.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self.failed_writes += 1
        if self.failed_writes == 1:
            log.warning("%s: lines of the log are being lost: %s", self._folder, error.strerror)

    def _send_soon(self, pool: ThreadPoolExecutor) -> None:
        if self._upload is not None:
            if not self._upload.done():
                return
            error = self._upload.exception()
            if error is not None:
                self.failed_uploads += 1
                log.warning("metrics not uploaded: %s", error)
                if not isinstance(error, StorageError):
                    raise error
        self._uploaded = time.monotonic()
        self._upload = pool.submit(self._send)

    def _send(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            if not path.is_file() or path.name.startswith("."):
                continue
            # Ended before its size is read: what is removed is what was sent.
            ended, size = path in self._ended, path.stat().st_size
            if self._sent.get(path) != size:
                storage.upload_file(
                    path, storage.join(self._run_uri, path.relative_to(self._folder).as_posix())
                )
                self._sent[path] = size
            if ended:
                path.unlink()
                del self._sent[path]


def _numbers(record: Record) -> list[tuple[str, float]]:
    found = []
    for name, value in record.items():
        if isinstance(value, dict):
            found += [(f"{name}/{inner}", number) for inner, number in _numbers(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((name, float(value)))
    return found


def figures(statistics: Tensor, languages: Sequence[str]) -> Record:
    """Losses and accuracies from sums [languages, STATISTICS], in all and for each language that occurs.

    ``loss`` is the token loss plus the pair loss, each divided by its own count.
    """
    sums = statistics.double().cpu()
    total = _figures_of(sums.sum(0))
    by_language = {
        lang: _figures_of(sums[index])
        for index, lang in enumerate(languages)
        if sums[index, STATISTICS.index("sequences")] > 0
    }
    return {**total, "languages": by_language}


def _figures_of(sums: Tensor) -> Record:
    value = dict(zip(STATISTICS, sums.tolist(), strict=True))
    found: Record = {}
    parts = []
    if value["token_count"]:
        parts.append(value["token_loss"] / value["token_count"])
        found["masked_tokens"] = int(value["token_count"])
        found["token_loss"] = parts[-1]
        found["token_accuracy"] = value["token_correct"] / value["token_count"]
    if value["pair_count"]:
        parts.append(value["pair_loss"] / value["pair_count"])
        found["pair_loss"] = parts[-1]
        found["pair_accuracy"] = value["pair_correct"] / value["pair_count"]
        first = value["pair_count"] - value["pair_second"]
        if value["pair_second"]:
            found["pair_accuracy_second"] = value["pair_second_correct"] / value["pair_second"]
        if first:
            found["pair_accuracy_first"] = (value["pair_correct"] - value["pair_second_correct"]) / first
        found["pair_share_second"] = value["pair_second"] / value["pair_count"]
    targets = int(value["token_count"] + value["pair_count"])
    return {"loss": math.fsum(parts), "targets": targets, **found}


class Meter:
    """Sums since the last line of the log."""

    def __init__(self, languages: int, device: torch.device) -> None:
        self._zero = torch.zeros(languages, len(STATISTICS), device=device)
        self.reset()

    def reset(self) -> None:
        """Begins a new stretch."""
        self.statistics = self._zero.clone()
        self.tokens = 0
        self.squares = 0
        self.room = 0
        self.steps = 0
        self.waited = 0.0
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the last reset; never 0."""
        return max(time.monotonic() - self.started, 1e-9)

    def timing(self) -> Record:
        """Throughput of all ranks together since the last reset."""
        seconds = self.seconds
        return {
            "tokens_per_second": round(self.tokens / seconds, 1),
            "step_seconds": round(seconds / max(self.steps, 1), 6),
            "data_wait_share": round(self.waited / seconds, 6),
            "packing_efficiency": round(self.tokens / max(self.room, 1), 6),
        }
