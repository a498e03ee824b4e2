"""The sharded form of a checkpoint: every rank writes its part of the weights and moments.

    RUN/checkpoints/step-00000042.000003-8f2c01aa/
        part-00000-of-00004.safetensors    the tensors of rank 0, by name; their bytes are balanced
        part-00000-of-00004.json           its size and SHA-256, put by the rank when it has read it back
        optimizer.pt                       groups and step counters, by rank 0; loaded with weights_only
        MANIFEST.json                      lists all parts; put by rank 0, last

The ranks hold equal copies, so that any division is right, and a checkpoint can be loaded by any number
of ranks. The ranks talk through the storage alone: a save is in the background, where no rank may wait in
a collective. torch's own distributed format (DCP) is not used because its index is a pickle.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from cluster import storage
from schemas.errors import CheckpointError, StorageError
from schemas.json_text import parse_json
from trainer import checkpoint_format as layout
from trainer.checkpoint_format import FileEntry

log = logging.getLogger(__name__)

_PART = re.compile(r"part-(\d{5})-of-(\d{5})\.safetensors")
_POLL_SECONDS = 0.2
_HURRY_SECONDS = 10.0


def part_name(rank: int, world_size: int) -> str:
    """The file of the tensors that ``rank`` writes."""
    return f"part-{rank:05d}-of-{world_size:05d}.safetensors"


def parts_of(names: Iterable[str]) -> list[str]:
    """The part files among ``names``, in order. Raises CheckpointError when one of them is missing."""
    found = sorted(name for name in names if _PART.fullmatch(name))
    if found:
        match = _PART.fullmatch(found[0])
        wanted = [part_name(rank, int(match[2])) for rank in range(int(match[2]))] if match else []
        missing = sorted(set(wanted) ^ set(found))
        if missing:
            raise CheckpointError(f"lists {len(found)} parts; {missing[0]} is missing or too many")
    return found


def named_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights as model/NAME and moments as optimizer/NUMBER/NAME; counters stay in the optimizer's rest."""
    tensors = {f"model/{name}": tensor for name, tensor in state["model"].items()}
    for number, moments in state["optimizer"]["state"].items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.ndim:
                tensors[f"optimizer/{number}/{name}"] = value
    return tensors


def divide(sizes: Mapping[str, int], world_size: int) -> list[list[str]]:
    """Names for each rank: the largest first, each to the rank with the fewest bytes so far."""
    loads = [0] * world_size
    names: list[list[str]] = [[] for _ in range(world_size)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = loads.index(min(loads))
        names[rank].append(name)
        loads[rank] += sizes[name]
    return names


def share_of(state: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """What ``rank`` saves of ``state``: "part", and for rank 0 "optimizer" without moments and "trainer"."""
    tensors = named_tensors(state)
    mine = divide({name: tensor.nbytes for name, tensor in tensors.items()}, world_size)[rank]
    share: dict[str, Any] = {"part": {name: tensors[name] for name in mine}}
    if rank == 0:
        optimizer = dict(state["optimizer"])
        optimizer["state"] = {
            number: {k: v for k, v in moments.items() if f"optimizer/{number}/{k}" not in tensors}
            for number, moments in state["optimizer"]["state"].items()
        }
        share |= {"optimizer": optimizer, "trainer": state["trainer"]}
    return share


def write_share(folder: Path, share: Mapping[str, Any], rank: int, world_size: int) -> dict[str, FileEntry]:
    """Writes the files of one rank. Raises OSError or RuntimeError when the disk refuses."""
    path = folder / part_name(rank, world_size)
    safetensors.torch.save_file(dict(share["part"]), path)
    entries = {path.name: layout.synced_entry(path)}
    if "optimizer" in share:
        entries |= layout.write_optimizer(folder, share["optimizer"])
    return entries


def read_parts(folder: Path, names: Iterable[str], origin: str) -> dict[str, Any]:
    """The whole state from local files. Raises CheckpointError that names the file."""
    model: dict[str, Tensor] = {}
    optimizer = layout.read_optimizer(folder, origin)
    for file in names:
        try:
            tensors = safetensors.torch.load_file(folder / file)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{origin}/{file}: not readable as safetensors: {error}") from error
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "model":
                model[rest] = tensor
                continue
            number, _, moment = rest.partition("/")
            try:
                optimizer["state"][int(number)][moment] = tensor
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{origin}/{file}: {name} has no place in the optimizer") from error
    return {"model": model, "optimizer": optimizer}


def put_share(uri: str, share: Mapping[str, Any], rank: int, world_size: int) -> dict[str, FileEntry]:
    """Writes the share of ``rank`` into the checkpoint folder ``uri`` and reads it back; its files.

    Raises CheckpointError, StorageError, OSError.
    """
    return layout.put_files(uri, lambda folder: write_share(folder, share, rank, world_size))


def await_parts(
    uri: str, world_size: int, timeout: float, hurry: threading.Event | None = None
) -> dict[str, FileEntry]:
    """The parts of all ranks but 0, when they are whole. Raises CheckpointError after ``timeout`` seconds.

    Once ``hurry`` is set, because the run has failed, the parts of ranks that live are awaited shortly.
    """
    end = time.monotonic() + timeout
    found: dict[str, FileEntry] = {}
    wanted = {part_name(rank, world_size): _note(uri, rank, world_size) for rank in range(1, world_size)}
    while len(found) < len(wanted):
        there = {info.uri for info in storage.list_files(uri)}
        for name, note in wanted.items():
            if name not in found and note in there:
                found[name] = _read_note(note)
        if len(found) < len(wanted):
            if hurry is not None and hurry.is_set():
                end, hurry = min(end, time.monotonic() + _HURRY_SECONDS), None
            if time.monotonic() > end:
                missing = min(wanted.keys() - found.keys())
                raise CheckpointError(f"{uri}/{missing}: its rank has not written it in time")
            time.sleep(_POLL_SECONDS)
    return found


def _note(uri: str, rank: int, world_size: int) -> str:
    return storage.join(uri, part_name(rank, world_size).replace(".safetensors", ".json"))


def _read_note(note: str) -> FileEntry:
    try:
        data = parse_json(storage.read_bytes(note))
        if "error" in data:
            raise CheckpointError(f"{note}: the rank could not save its part: {data['error']}")
        return FileEntry(int(data["size"]), str(data["sha256"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{note}: does not say what the part is") from error


class PartWriter:
    """The saves of a rank other than 0: one in flight, in a background thread.

    Whether a save counts is rank 0's to find out; a part that cannot be written is logged here and told
    to rank 0.
    """

    def __init__(self, run_uri: str, folder_suffix: str, rank: int, world_size: int) -> None:
        self._root, self._suffix = storage.join(run_uri, "checkpoints"), folder_suffix
        self._rank, self._world_size = rank, world_size
        self._snapshot = layout.Snapshot()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None

    def save_async(self, step: int, state: Mapping[str, Any]) -> None:
        """Copies this rank's share of ``state`` and begins to save it; waits for the save before it."""
        if self._in_flight is not None:
            self._in_flight.result()
        share = self._snapshot.take(share_of(state, self._rank, self._world_size))
        self._in_flight = self._thread.submit(self._save, step, share)

    def close(self) -> None:
        """Waits for the save in flight."""
        self._thread.shutdown(wait=True)

    def _save(self, step: int, share: Mapping[str, Any]) -> None:
        uri = storage.join(self._root, layout.folder_name(step, self._suffix))
        note = _note(uri, self._rank, self._world_size)
        try:
            layout.check_finite(share)
            (entry,) = put_share(uri, share, self._rank, self._world_size).values()
            said: dict[str, Any] = {"sha256": entry.sha256, "size": entry.size}
        except Exception as error:  # whatever a disk, a library or a store may raise
            said = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
            log.error("%s: part of rank %d not saved: %s", uri, self._rank, said["error"])  # noqa: TRY400 - rank 0 tells
        try:
            storage.put_bytes(note, json.dumps(said, sort_keys=True).encode())
        except (StorageError, OSError) as error:
            log.error("%s: %s", note, error)  # noqa: TRY400 - rank 0 gives up waiting for it
