"""The files of a checkpoint folder: how they are written, verified and read.

    RUN/checkpoints/step-00000042.000003-8f2c01aa/
        model.safetensors    parameters and buffers, by their plain names
        optimizer.pt         optimizer state, loaded with weights_only (tensors, numbers, containers)
        ema.safetensors      moving average of the parameters, if the config sets ema
        vocab.txt, tokenizer.json, tokenizer_config.json    the tokenizer of the corpus
        MANIFEST.json        sizes and SHA-256 of the files, step, state of the run (written last)

With ``checkpoints.format: sharded`` the files are those of trainer/checkpoint/parts.py.

A folder without MANIFEST.json is an unfinished upload and is ignored. No file of a checkpoint can carry
code: the manifest is JSON, the weights are safetensors, and torch loads only plain data.
"""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cluster import scratch, storage
from cluster.storage import local_files
from schemas.errors import CheckpointError, StorageError, StorageFullError
from trainer.checkpoint.manifest import EMA, MODEL, OPTIMIZER, TOKENIZER_FILES, FileEntry, RunState

_CHUNK = 4 << 20
_LEAST_FREE = 1 << 20


@dataclass(frozen=True)
class TrainingState:
    """Everything that a checkpoint holds."""

    model: Mapping[str, Tensor]
    """Parameters and buffers by name."""
    optimizer: Mapping[str, Any]
    """``state_dict()`` of the optimizer: tensors, numbers and containers."""
    run: RunState
    ema: Mapping[str, Tensor] = field(default_factory=dict)
    """Moving average of the parameters, or {} if the run keeps none."""
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the tokenizer, by name."""


def write_state(folder: Path, state: TrainingState) -> dict[str, FileEntry]:
    """Writes model, optimizer and average into ``folder``. Equal states give equal bytes.

    Raises OSError or RuntimeError when writing fails.
    """
    entries = {MODEL: write_tensors(folder / MODEL, state.model)}
    if state.ema:
        entries[EMA] = write_tensors(folder / EMA, state.ema)
    return entries | write_optimizer(folder, state.optimizer) | write_tokenizer(folder, state.tokenizer)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Writes tensors as safetensors, with the permissions that the umask gives to a new file.

    safetensors makes its files readable to their owner only. Raises OSError or RuntimeError if writing fails.
    """
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(dict(tensors), path)
    if path.stat().st_mode != mode:
        path.chmod(mode)
    return synced_entry(path)


def write_tokenizer(folder: Path, tokenizer: Mapping[str, bytes]) -> dict[str, FileEntry]:
    """Writes the files of the tokenizer. Raises OSError when writing fails."""
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
    return {name: synced_entry(folder / name) for name in tokenizer}


def write_optimizer(folder: Path, optimizer: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Writes optimizer.pt. Raises OSError or RuntimeError when writing fails."""
    path = folder / OPTIMIZER
    with path.open("wb") as file:
        torch.save(optimizer, file)
    return {OPTIMIZER: synced_entry(path)}


def put_files(uri: str, write: Callable[[Path], dict[str, FileEntry]]) -> dict[str, FileEntry]:
    """Calls ``write`` to write files, stores them in the folder ``uri``, and reads them back from there.

    Raises CheckpointError when the bytes read differ from those written, StorageFullError, StorageError,
    OSError.
    """
    if storage.scheme(uri) == "file":
        folder = local_files.path_of(uri)
        folder.mkdir(parents=True, exist_ok=True)
        files = _write_in_place(folder, write)
    else:
        with scratch.folder("save") as folder:
            files = _write_locally(folder, write)
            for name in files:
                storage.upload_file(folder / name, storage.join(uri, name))
    for name, entry in files.items():
        check_file(uri, name, entry)
    return files


def _write_in_place(folder: Path, write: Callable[[Path], dict[str, FileEntry]]) -> dict[str, FileEntry]:
    """Calls ``write`` in the folder itself. Raises StorageFullError when there is no room, and its errors."""
    try:
        return write(folder)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        # torch does not report why it could not write, but the disk is full afterwards.
        if local_files.is_full(error) or shutil.disk_usage(folder).free < _LEAST_FREE:
            raise StorageFullError(f"{folder}: no room for a checkpoint: {_text(error)}") from error
        raise


def _write_locally(folder: Path, write: Callable[[Path], dict[str, FileEntry]]) -> dict[str, FileEntry]:
    """Calls ``write`` in a local folder. Raises StorageError that names it instead of the remote folder."""
    try:
        return write(folder)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        raise StorageError(
            f"{folder}: cannot write the files of a checkpoint here before their upload"
            f" ({free / 2**20:,.0f} MiB free; TMPDIR moves this folder): {_text(error)}"
        ) from error


def synced_entry(path: Path) -> FileEntry:
    """The entry of a file that was just written, after a sync to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _entry(path)


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        size, digest = _hash(file)
    return FileEntry(size=size, sha256=digest)


def _hash(file: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def check_file(folder_uri: str, name: str, entry: FileEntry, copy: Path | None = None) -> None:
    """Reads one file and compares it with its entry. ``copy`` keeps a local copy of the file.

    Raises CheckpointError that names the file if it is missing, truncated or changed, StorageError if the
    storage does not answer.
    """
    uri = storage.join(folder_uri, name)
    try:
        if copy is not None:
            storage.download_file(uri, copy)
        with copy.open("rb") if copy is not None else storage.open_stream(uri) as file:
            size, digest = _hash(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"{uri}: missing") from error
    if size != entry.size:
        raise CheckpointError(f"{uri}: {size} bytes instead of {entry.size}")
    if digest != entry.sha256:
        raise CheckpointError(f"{uri}: its sha256 differs from the manifest")


def read_state(folder: Path, run: RunState, origin: str, *, with_ema: bool = False) -> TrainingState:
    """The state of a whole (not sharded) checkpoint. Raises CheckpointError that names the file."""
    model = _read_tensors(folder, MODEL, origin)
    ema = _read_tensors(folder, EMA, origin) if with_ema else {}
    return TrainingState(model, read_optimizer(folder, origin), run, ema, read_tokenizer(folder))


def _read_tensors(folder: Path, name: str, origin: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(folder / name)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{origin}/{name}: not readable as safetensors: {_text(error)}") from error


def read_tokenizer(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer in a checkpoint folder, or {} for one of an older version."""
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def read_optimizer(folder: Path, origin: str) -> dict[str, Any]:
    """The content of optimizer.pt. Raises CheckpointError when it holds more than plain data."""
    try:
        optimizer: dict[str, Any] = torch.load(
            folder / OPTIMIZER, weights_only=True, map_location="cpu", mmap=True
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{origin}/{OPTIMIZER}: refused, because it holds more than plain data: {_text(error)}"
        ) from error
    except Exception as error:  # torch's unpickler raises all kinds of errors
        reason = f"{type(error).__name__}: {_text(error)}"
        raise CheckpointError(f"{origin}/{OPTIMIZER}: not readable: {reason}") from error
    if not isinstance(optimizer, dict):
        raise CheckpointError(f"{origin}/{OPTIMIZER}: not the state of an optimizer")
    return optimizer


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
