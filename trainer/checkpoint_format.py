"""What lies in a checkpoint folder, and how it is written, checked and read.

    RUN/checkpoints/step-00000042.000003-8f2c01aa/
        model.safetensors    parameters and buffers, by their plain names
        optimizer.pt         optimizer state, loaded with weights_only (tensors, numbers, containers)
        MANIFEST.json        sizes and SHA-256 of the files, step, trainer state; written last

With ``checkpoints.format: sharded`` the files are those of trainer/checkpoint_parts.py.

A folder without MANIFEST.json is an unfinished upload and means nothing. Nothing in a checkpoint can
carry code: the manifest is JSON, the weights are safetensors and torch refuses all but plain data.
"""

import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
import torch

from cluster import local_files, scratch, storage
from cluster.files import FileInfo
from schemas.errors import CheckpointError
from schemas.json_text import parse_json

FORMAT = 1
MANIFEST = "MANIFEST.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.pt"

_FOLDER = re.compile(r"step-(\d{8,})\.(\d{6,})(-[a-z0-9-]*)?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHUNK = 4 << 20


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint as the manifest records it."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of MANIFEST.json."""

    step: int
    attempt: int
    created: int
    """Seconds since 1970."""
    files: Mapping[str, FileEntry]
    trainer: Mapping[str, Any]
    """Whatever the loop needs beside tensors; JSON."""

    def to_bytes(self) -> bytes:
        """JSON with a SHA-256 over itself, so that a flipped digit is seen too."""
        body = {
            "attempt": self.attempt,
            "created": self.created,
            "files": {name: {"sha256": e.sha256, "size": e.size} for name, e in self.files.items()},
            "format": FORMAT,
            "step": self.step,
            "trainer": self.trainer,
        }
        return json.dumps({**body, "sha256": _digest(body)}, sort_keys=True, indent=1).encode()


def parse_manifest(raw: bytes, uri: str) -> Manifest:
    """The manifest in ``raw``. Raises CheckpointError that names ``uri`` if it is not whole."""
    try:
        body = parse_json(raw)
        said = body.pop("sha256")
        version = body["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{uri}: not a checkpoint manifest") from error
    if version != FORMAT:
        raise CheckpointError(f"{uri}: checkpoint format {version!r}, this version reads {FORMAT}")
    if said != _digest(body):
        raise CheckpointError(f"{uri}: the manifest is damaged (its own sha256 differs)")
    try:
        files = {name: FileEntry(int(e["size"]), str(e["sha256"])) for name, e in body["files"].items()}
        step, attempt, created = (int(body[name]) for name in ("step", "attempt", "created"))
        trainer = dict(body["trainer"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{uri}: not a checkpoint manifest") from error
    for name in files:
        if not _FILE.fullmatch(name):
            raise CheckpointError(f"{uri}: lists a file {name!r}, which is not a plain name")
    return Manifest(step, attempt, created, files, trainer)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Folder:
    """One checkpoint folder as a listing shows it."""

    attempt: int
    step: int
    uri: str
    files: Mapping[str, FileInfo]

    @property
    def committed(self) -> bool:
        """Whether it has a manifest."""
        return MANIFEST in self.files

    def manifest(self) -> Manifest:
        """The checked manifest. Raises CheckpointError."""
        uri = storage.join(self.uri, MANIFEST)
        try:
            return parse_manifest(storage.read_bytes(uri), uri)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{uri}: missing; the checkpoint was not finished or was deleted"
            ) from error


def folder_name(step: int, attempt_suffix: str) -> str:
    """Name of the folder of ``step``, unique to the attempt."""
    return f"step-{step:08d}.{attempt_suffix}"


def scan(run_uri: str) -> list[Folder]:
    """All checkpoint folders of the run, newest first: the newest attempt's highest step leads.

    The attempt goes before the step, because an attempt that fell back to an earlier step has made
    the later steps of the attempts before it a branch that the run does not follow.
    """
    root = storage.join(run_uri, "checkpoints")
    found: dict[str, dict[str, FileInfo]] = {}
    for info in storage.list_files(root):
        name, _, file = info.uri.removeprefix(root.rstrip("/") + "/").partition("/")
        if file:
            found.setdefault(name, {})[file] = info
    folders = []
    for name, files in found.items():
        match = _FOLDER.fullmatch(name)
        if match:
            folders.append(Folder(int(match[2]), int(match[1]), storage.join(root, name), files))
    return sorted(folders, key=lambda folder: (folder.attempt, folder.step, folder.uri), reverse=True)


class Snapshot:
    """Copies of a state's tensors in host memory, in buffers that are used again for each save.

    Training goes on while the copy is written. Copies of CUDA tensors are pinned, so that they are
    taken at the speed of the bus.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with every tensor replaced by its copy; the copy is valid until the next call."""
        copied: dict[str, Any] = self._copy(dict(state), "")
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value.detach(), path)
        if isinstance(value, Mapping):
            return {key: self._copy(inner, f"{path}/{key}") for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(inner, f"{path}/{n}") for n, inner in enumerate(value))
        return value

    def _copy_tensor(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[path] = buffer
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def check_finite(state: Any, name: str = "state") -> None:
    """Raises CheckpointError that names the first tensor of ``state`` with a NaN or an infinity in it.

    Such a checkpoint is whole and of no use, and would in the end take the place of the good ones.
    """
    if isinstance(state, torch.Tensor):
        if state.is_meta or state.layout != torch.strided:
            raise CheckpointError(f"{name} is no plain tensor")
        if state.is_floating_point() and not bool(torch.isfinite(state).all()):
            raise CheckpointError(f"{name} has values that are not finite")
    elif isinstance(state, Mapping):
        for key, inner in state.items():
            check_finite(inner, f"{name}/{key}")
    elif isinstance(state, list | tuple):
        for number, inner in enumerate(state):
            check_finite(inner, f"{name}/{number}")


def write_state(folder: Path, state: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Writes model and optimizer into ``folder``; equal states give equal bytes.

    Raises OSError or RuntimeError when the disk refuses.
    """
    model = folder / MODEL
    safetensors.torch.save_file(dict(state["model"]), model)
    return {MODEL: synced_entry(model)} | write_optimizer(folder, state["optimizer"])


def write_optimizer(folder: Path, optimizer: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Writes optimizer.pt. Raises OSError or RuntimeError when the disk refuses."""
    path = folder / OPTIMIZER
    with path.open("wb") as file:
        torch.save(optimizer, file)
    return {OPTIMIZER: synced_entry(path)}


def put_files(uri: str, write: Callable[[Path], dict[str, FileEntry]]) -> dict[str, FileEntry]:
    """Lets ``write`` write files, which then lie in the folder ``uri`` and have been read back from there.

    Raises CheckpointError when what is read is not what was written, StorageError, OSError.
    """
    if storage.scheme(uri) == "file":
        folder = local_files.path_of(uri)
        folder.mkdir(parents=True, exist_ok=True)
        files = write(folder)
    else:
        with scratch.folder("save") as folder:
            files = write(folder)
            for name in files:
                storage.upload_file(folder / name, storage.join(uri, name))
    for name, entry in files.items():
        check_file(uri, name, entry)
    return files


def synced_entry(path: Path) -> FileEntry:
    """The entry of a file that was just written, once the disk has it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _entry(path)


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        size, digest = _hash(file)
    return FileEntry(size, digest)


def _hash(file: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def check_file(folder_uri: str, name: str, entry: FileEntry, copy: Path | None = None) -> None:
    """Reads one file and compares it with its entry; ``copy`` keeps what was read, as a local file.

    Raises CheckpointError that names the file if it is missing, cut or changed, StorageError if the
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


def read_state(folder: Path, origin: str) -> dict[str, Any]:
    """Model and optimizer state from local files. Raises CheckpointError that names the file."""
    try:
        model = safetensors.torch.load_file(folder / MODEL)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{origin}/{MODEL}: not readable as safetensors: {_text(error)}") from error
    return {"model": model, "optimizer": read_optimizer(folder, origin)}


def read_optimizer(folder: Path, origin: str) -> dict[str, Any]:
    """The content of optimizer.pt. Raises CheckpointError when it is anything but plain data."""
    try:
        optimizer: dict[str, Any] = torch.load(
            folder / OPTIMIZER, weights_only=True, map_location="cpu", mmap=True
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{origin}/{OPTIMIZER}: refused, it holds something other than plain data: {_text(error)}"
        ) from error
    except Exception as error:  # torch's unpickler raises whatever it stumbles over
        reason = f"{type(error).__name__}: {_text(error)}"
        raise CheckpointError(f"{origin}/{OPTIMIZER}: not readable: {reason}") from error
    if not isinstance(optimizer, dict):
        raise CheckpointError(f"{origin}/{OPTIMIZER}: no state of an optimizer")
    return optimizer


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
