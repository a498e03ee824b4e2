"""The sharded form of a checkpoint: every rank writes its part of the weights and moments.

    RUN/checkpoints/step-00000042.000003-8f2c01aa/
        part-00000-of-00004.safetensors    the tensors of rank 0, by name (ranks get about equal bytes)
        part-00000-of-00004.json           its size and SHA-256, written when the part has been read back
        vocab.txt ...                      the tokenizer, by rank 0
        optimizer.pt                       groups and step counters, by rank 0 (loaded with weights_only)
        MANIFEST.json                      lists all parts (rank 0 writes it last)

Where the ranks hold equal copies, each saves some of the tensors, and any division is correct. Where they
share the tensors (``data_parallel: fsdp``), each saves its rows, and a name that several parts have is one
tensor, cut along its first dimension, in the order of the parts. Any number of ranks can load either, with
sharded weights or without. The ranks communicate through the storage alone, because a save runs in the
background, where no rank may wait in a collective. torch's distributed format (DCP) is not used because its
index is a pickle.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cluster import storage
from schemas.errors import CheckpointError, StorageError, StorageFullError
from schemas.json_text import parse_json
from trainer.checkpoint import files, snapshot
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.folders import checkpoints_uri, folder_name
from trainer.checkpoint.manifest import FileEntry, RunState

logger = logging.getLogger(__name__)

_PART = re.compile(r"part-(\d{5})-of-(\d{5})\.safetensors")
_POLL_SECONDS = 0.2
_AFTER_FAILURE_SECONDS = 10.0


@dataclass(frozen=True)
class RankShare:
    """What one rank saves of a TrainingState."""

    tensors: Mapping[str, Tensor]
    """Weights as model/NAME, their averages as ema/NAME, and moments as optimizer/NUMBER/NAME."""
    optimizer: Mapping[str, Any] | None = None
    """The optimizer's state without its moments. Rank 0 alone saves it."""
    run: RunState | None = None
    """Rank 0 alone saves it."""
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Rank 0 alone saves it."""


@dataclass(frozen=True)
class PartNote:
    """What a rank reports about its part: how it was written, or why it was not."""

    entry: FileEntry | None
    error: str | None = None
    full: bool = False
    """Whether it was not written for lack of room."""

    def to_bytes(self) -> bytes:
        """JSON."""
        failed = {"error": self.error, "full": self.full}
        content = failed if self.entry is None else self.entry.model_dump()
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, uri: str) -> "PartNote":
        """The note in ``raw``. Raises CheckpointError."""
        try:
            content = parse_json(raw)
            if "error" in content:
                return cls(None, str(content["error"]), bool(content.get("full")))
            return cls(FileEntry.model_validate(content))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{uri}: not the note of a part") from error


def part_name(rank: int, world_size: int) -> str:
    """The file of the tensors that ``rank`` writes."""
    return f"part-{rank:05d}-of-{world_size:05d}.safetensors"


def parts_of(names: Iterable[str]) -> list[str]:
    """The part files among ``names``, in order. Raises CheckpointError when one of them is missing."""
    parts = sorted(name for name in names if _PART.fullmatch(name))
    if parts:
        match = _PART.fullmatch(parts[0])
        expected = [part_name(rank, int(match[2])) for rank in range(int(match[2]))] if match else []
        differing = sorted(set(expected) ^ set(parts))
        if differing:
            raise CheckpointError(f"lists {len(parts)} parts; {differing[0]} is missing or unexpected")
    return parts


def named_tensors(state: TrainingState) -> dict[str, Tensor]:
    """Weights, averages and moments by the names of RankShare. Step counters are left out."""
    tensors = {f"model/{name}": tensor for name, tensor in state.model.items()}
    tensors |= {f"ema/{name}": tensor for name, tensor in state.ema.items()}
    for number, moments in state.optimizer["state"].items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.ndim:
                tensors[f"optimizer/{number}/{name}"] = value
    return tensors


def divide(sizes: Mapping[str, int], world_size: int) -> list[list[str]]:
    """Names for each rank: largest first, each goes to the rank with the fewest bytes so far."""
    loads = [0] * world_size
    names: list[list[str]] = [[] for _ in range(world_size)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = loads.index(min(loads))
        names[rank].append(name)
        loads[rank] += sizes[name]
    return names


def share_of(state: TrainingState, rank: int, world_size: int) -> RankShare:
    """What ``rank`` saves of ``state``."""
    tensors = named_tensors(state)
    # The class of sharded tensors takes a second to import.
    rows = {name: tensor.to_local() for name, tensor in tensors.items() if hasattr(tensor, "to_local")}
    copies = {name: tensor.nbytes for name, tensor in tensors.items() if name not in rows}
    own_tensors = {name: tensors[name] for name in divide(copies, world_size)[rank]}
    own_tensors |= {name: tensor for name, tensor in rows.items() if tensor.numel()}
    if rank != 0:
        return RankShare(own_tensors)
    optimizer = dict(state.optimizer)
    optimizer["state"] = {
        number: {k: v for k, v in moments.items() if f"optimizer/{number}/{k}" not in tensors}
        for number, moments in state.optimizer["state"].items()
    }
    return RankShare(own_tensors, optimizer, state.run, state.tokenizer)


def write_share(folder: Path, share: RankShare, rank: int, world_size: int) -> dict[str, FileEntry]:
    """Writes the files of one rank. Raises OSError or RuntimeError when writing fails."""
    path = folder / part_name(rank, world_size)
    entries = {path.name: files.write_tensors(path, share.tensors)}
    if share.optimizer is not None:
        entries |= files.write_optimizer(folder, share.optimizer)
    return entries | files.write_tokenizer(folder, share.tokenizer)


def read_parts(folder: Path, names: Iterable[str], run: RunState, origin: str) -> TrainingState:
    """The state in the parts ``names``. Raises CheckpointError that names the file."""
    weights: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}}
    optimizer = files.read_optimizer(folder, origin)
    pieces: dict[str, list[Tensor]] = {}
    for file in names:
        try:
            tensors = safetensors.torch.load_file(folder / file)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{origin}/{file}: not readable as safetensors: {error}") from error
        for name, tensor in tensors.items():
            pieces.setdefault(name, []).append(tensor)
    for name, rows in pieces.items():
        try:
            tensor = rows[0] if len(rows) == 1 else torch.cat(rows)
        except RuntimeError as error:
            raise CheckpointError(f"{origin}: the parts of {name} do not fit together: {error}") from error
        kind, _, rest = name.partition("/")
        if kind in weights:
            weights[kind][rest] = tensor
            continue
        number, _, moment = rest.partition("/")
        try:
            optimizer["state"][int(number)][moment] = tensor
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{origin}: {name} does not belong to the optimizer") from error
    return TrainingState(weights["model"], optimizer, run, weights["ema"], files.read_tokenizer(folder))


def put_share(uri: str, share: RankShare, rank: int, world_size: int) -> dict[str, FileEntry]:
    """Writes the share of ``rank`` into the checkpoint folder ``uri``, reads it back and returns its files.

    Raises CheckpointError, StorageError, OSError.
    """
    return files.put_files(uri, lambda folder: write_share(folder, share, rank, world_size))


def await_parts(
    uri: str, world_size: int, timeout: float, run_failed: threading.Event | None = None
) -> dict[str, FileEntry]:
    """The parts of all ranks but 0, once they are complete. Raises CheckpointError after ``timeout`` seconds.

    After ``run_failed`` is set, the wait for the remaining ranks is cut to a few seconds.
    """
    end = time.monotonic() + timeout
    entries: dict[str, FileEntry] = {}
    notes = {part_name(rank, world_size): _note_uri(uri, rank, world_size) for rank in range(1, world_size)}
    while len(entries) < len(notes):
        listed = {info.uri for info in storage.list_files(uri)}
        for name, note_uri in notes.items():
            if name not in entries and note_uri in listed:
                entries[name] = _entry_of(note_uri)
        if len(entries) < len(notes):
            if run_failed is not None and run_failed.is_set():
                end, run_failed = min(end, time.monotonic() + _AFTER_FAILURE_SECONDS), None
            if time.monotonic() > end:
                missing = min(notes.keys() - entries.keys())
                raise CheckpointError(f"{uri}/{missing}: its rank did not write it in time")
            time.sleep(_POLL_SECONDS)
    return entries


def _note_uri(uri: str, rank: int, world_size: int) -> str:
    return storage.join(uri, part_name(rank, world_size).replace(".safetensors", ".json"))


def _entry_of(note_uri: str) -> FileEntry:
    note = PartNote.from_bytes(storage.read_bytes(note_uri), note_uri)
    if note.entry is None:
        kind = StorageFullError if note.full else CheckpointError
        raise kind(f"{note_uri}: the rank could not save its part: {note.error}")
    return note.entry


class PartWriter:
    """The saves of a rank other than 0: at most one in flight, in a background thread.

    Rank 0 decides whether a save counts. A part that cannot be written is logged here and reported to
    rank 0 in the part's note.
    """

    def __init__(self, run_uri: str, folder_suffix: str, rank: int, world_size: int) -> None:
        self._root, self._suffix = checkpoints_uri(run_uri), folder_suffix
        self._rank, self._world_size = rank, world_size
        self._snapshot = snapshot.Snapshot()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None

    def save_async(self, step: int, state: TrainingState) -> None:
        """Waits for the previous save, copies this rank's share of ``state`` and starts to save it."""
        if self._in_flight is not None:
            self._in_flight.result()
        share = self._snapshot.take(share_of(state, self._rank, self._world_size))
        self._in_flight = self._thread.submit(self._save, step, share)

    def close(self) -> None:
        """Waits for the save in flight."""
        self._thread.shutdown(wait=True)

    def _save(self, step: int, share: RankShare) -> None:
        uri = storage.join(self._root, folder_name(step, self._suffix))
        note_uri = _note_uri(uri, self._rank, self._world_size)
        try:
            snapshot.check_finite(share.tensors)
            (entry,) = put_share(uri, share, self._rank, self._world_size).values()
            note = PartNote(entry)
        except Exception as error:  # any error of a disk, a library or a store
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            note = PartNote(None, reason, isinstance(error, StorageFullError))
            logger.error("%s: part of rank %d not saved: %s", uri, self._rank, note.error)  # noqa: TRY400 - rank 0 reports it
        try:
            storage.put_bytes(note_uri, note.to_bytes())
        except (StorageError, OSError) as error:
            logger.error("%s: %s", note_uri, error)  # noqa: TRY400 - rank 0 stops waiting for it
