"""Damaged and hostile checkpoints: which are skipped, which are refused, and what the list shows."""

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster import storage
from schemas.errors import CheckpointError
from tests.trainer.states import (
    TinyTraining,
    assert_equal,
    flip_byte,
    folder_of,
    reasons,
    save_steps,
)
from trainer.checkpoint.folders import list_folders, read_manifest
from trainer.checkpoint.listing import UNFINISHED, format_line, list_checkpoints, verify_run
from trainer.checkpoint.manifest import MANIFEST, MODEL, OPTIMIZER, FileEntry
from trainer.checkpoint.reading import latest_verified


def cut(uri: str) -> None:
    data = storage.read_bytes(uri)
    storage.put_bytes(uri, data[: len(data) // 2])


def flip_middle(uri: str) -> None:
    flip_byte(uri, storage.size(uri) // 2)


def flip_last(uri: str) -> None:
    flip_byte(uri, storage.size(uri) - 1)


def empty(uri: str) -> None:
    storage.put_bytes(uri, b"")


def change_step(uri: str) -> None:
    storage.put_bytes(uri, storage.read_bytes(uri).replace(b'"step": 6', b'"step": 7'))


# trainer-037: every way to damage the newest checkpoint. The message names the file and the reason.
DAMAGES = [
    (MODEL, cut, "bytes instead of"),
    (MODEL, flip_middle, "sha256 differs"),
    (MODEL, flip_last, "sha256 differs"),
    (MODEL, storage.delete, "missing"),
    (MODEL, empty, "0 bytes instead of"),
    (OPTIMIZER, cut, "bytes instead of"),
    (OPTIMIZER, flip_middle, "sha256 differs"),
    (OPTIMIZER, storage.delete, "missing"),
    (MANIFEST, cut, "not a checkpoint manifest"),
    (MANIFEST, empty, "not a checkpoint manifest"),
    (MANIFEST, change_step, "the manifest is damaged"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGES)
def test_a_damaged_newest_one_is_passed_over_loudly(
    run: str, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[str], None], reason: str
) -> None:
    save_steps(run, [2, 4, 6])
    damaged = storage.join(folder_of(run, 6), name)
    damage(damaged)
    found = latest_verified(run)
    assert found is not None
    assert found.step == 4
    assert damaged in reasons(caplog)
    assert reason in reasons(caplog)
    reference = TinyTraining()
    reference.step(4)
    assert_equal(found.load(), reference.state())


def test_every_single_byte_of_a_manifest_counts(local_run: str) -> None:
    save_steps(local_run, [2, 4])
    uri = storage.join(folder_of(local_run, 4), MANIFEST)
    whole = storage.read_bytes(uri)
    for position in range(len(whole)):
        if whole[position : position + 1].isspace():
            continue
        flip_byte(uri, position)
        found = latest_verified(local_run)
        assert found is not None
        assert found.step == 2, f"byte {position} of the manifest was changed unnoticed"
        storage.put_bytes(uri, whole)


def test_a_manifest_of_another_step_is_refused(local_run: str, caplog: pytest.LogCaptureFixture) -> None:
    save_steps(local_run, [2, 4])
    manifest = storage.read_bytes(storage.join(folder_of(local_run, 2), MANIFEST))
    storage.put_bytes(storage.join(folder_of(local_run, 4), MANIFEST), manifest)
    found = latest_verified(local_run)
    assert found is not None
    assert found.step == 2
    assert "its manifest is that of step 2" in reasons(caplog)


def test_an_unfinished_newest_one_is_passed_over(run: str, caplog: pytest.LogCaptureFixture) -> None:
    save_steps(run, [2, 4])
    storage.delete(storage.join(folder_of(run, 4), MANIFEST))
    found = latest_verified(run)
    assert found is not None
    assert found.step == 2
    assert "unfinished" in reasons(caplog)


def test_when_all_are_damaged_the_run_does_not_start_over(run: str) -> None:
    """trainer-038."""
    save_steps(run, [2, 4])
    flip_middle(storage.join(folder_of(run, 2), MODEL))
    cut(storage.join(folder_of(run, 4), OPTIMIZER))
    with pytest.raises(CheckpointError, match=r"none of its 2 checkpoints can be used.*optimizer.pt"):
        latest_verified(run)


class Boom:
    """Pickles to a call that creates a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (open_for_writing, (str(self._marker),))


def open_for_writing(path: str) -> str:
    Path(path).touch()
    return path


def forge(run: str, step: int, name: str, data: bytes) -> None:
    """Replaces a file of a checkpoint and makes the manifest agree with it."""
    folder = next(f for f in list_folders(run) if f.step == step)
    manifest = read_manifest(folder.uri)
    files = dict(manifest.files)
    files[name] = FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    storage.put_bytes(storage.join(folder.uri, name), data)
    forged = manifest.model_copy(update={"files": files})
    storage.put_bytes(storage.join(folder.uri, MANIFEST), forged.to_bytes())


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER])
@pytest.mark.parametrize("form", ["torch", "torch-legacy", "pickle"])
def test_code_in_a_checkpoint_does_not_run(local_run: str, tmp_path: Path, name: str, form: str) -> None:
    """trainer-053: hashes are right, the content is hostile."""
    marker = tmp_path / "executed"
    evil = {"state": Boom(marker)}
    buffer = io.BytesIO()
    if form == "pickle":
        pickle.dump(evil, buffer)
    else:
        torch.save(evil, buffer, _use_new_zipfile_serialization=form == "torch")
    save_steps(local_run, [1])
    forge(local_run, 1, name, buffer.getvalue())
    found = latest_verified(local_run)
    assert found is not None
    with pytest.raises(CheckpointError, match=name):
        found.load()
    assert not marker.exists()
    assert any(name in problem for problem in verify_run(local_run))
    pickle.loads(pickle.dumps(evil))
    assert marker.exists()  # the payload works where it is loaded


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/b", "..", ""])
def test_a_manifest_cannot_name_files_outside(local_run: str, name: str) -> None:
    save_steps(local_run, [1])
    folder = list_folders(local_run)[0]
    manifest = read_manifest(folder.uri)
    files = {**manifest.files, name: FileEntry(size=1, sha256="0" * 64)}
    forged = manifest.model_copy(update={"files": files})
    storage.put_bytes(storage.join(folder.uri, MANIFEST), forged.to_bytes())
    with pytest.raises(CheckpointError, match="not a plain name"):
        latest_verified(local_run)


def test_the_list_says_what_is_wrong(run: str) -> None:
    save_steps(run, [2, 4, 6])
    flip_middle(storage.join(folder_of(run, 4), MODEL))
    storage.delete(storage.join(folder_of(run, 6), MANIFEST))
    listed = list(list_checkpoints(run))
    assert [entry.step for entry in listed] == [6, 4, 2]
    assert listed[0].problem == UNFINISHED
    assert listed[1].problem is not None
    assert "model.safetensors: its sha256 differs" in listed[1].problem
    assert listed[2].problem is None
    line = format_line(listed[2], now=listed[2].modified + 7200)
    assert line.split()[:2] == ["step", "2"]
    assert "2 h" in line
    assert "verified" in line
    assert verify_run(run) == [listed[1].problem]


def test_a_run_without_checkpoints_is_reported(run: str) -> None:
    with pytest.raises(CheckpointError, match="no checkpoints here"):
        verify_run(run)


def test_a_manifest_is_json_that_says_what_is_there(local_run: str) -> None:
    save_steps(local_run, [2])
    body = json.loads(storage.read_bytes(storage.join(folder_of(local_run, 2), MANIFEST)))
    assert body["format"] == 2
    assert body["step"] == 2
    wanted = {"step": 2, "tokens": 8, "first_loss": None, "last_loss": None}
    assert wanted.items() <= body["run"]["position"].items()
    assert body["run"]["config"] == {"width": 16}
    assert sorted(body["files"]) == [MODEL, OPTIMIZER]


@pytest.mark.parametrize("content", [None, [1], 5, torch.zeros(3)])
def test_an_invalid_optimizer_file(local_run: str, content: object) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    save_steps(local_run, [1])
    forge(local_run, 1, OPTIMIZER, buffer.getvalue())
    assert f"{OPTIMIZER}: not the state of an optimizer" in verify_run(local_run)[0]


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.zeros(3, device="meta")])
def test_tensors_without_plain_values(local_run: str, tensor: torch.Tensor) -> None:
    buffer = io.BytesIO()
    torch.save({"a": tensor}, buffer)
    save_steps(local_run, [1])
    forge(local_run, 1, OPTIMIZER, buffer.getvalue())
    assert "optimizer/a is not a plain tensor" in verify_run(local_run)[0]


def test_odd_bytes_under_right_hashes_are_reported(local_run: str) -> None:
    """torch's unpickler raises KeyErrors and other errors. Each of them means a damaged file."""
    save_steps(local_run, [1])
    raw = storage.read_bytes(storage.join(folder_of(local_run, 1), OPTIMIZER))
    random = np.random.default_rng(7)
    reported = 0
    for _ in range(150):
        data = bytearray(raw)
        for place in random.integers(0, min(len(data), 1500), 3):
            data[place] = int(random.integers(256))
        forge(local_run, 1, OPTIMIZER, bytes(data))
        reported += bool(verify_run(local_run))
    assert reported > 75


def test_a_checkpoint_of_another_format_is_refused_in_one_line(local_run: str) -> None:
    save_steps(local_run, [1])
    uri = storage.join(folder_of(local_run, 1), MANIFEST)
    body = json.loads(storage.read_bytes(uri))
    storage.put_bytes(uri, json.dumps({**body, "format": 1}).encode())
    with pytest.raises(
        CheckpointError, match=r"checkpoint format 1, but this version of bertmill reads format 2"
    ):
        latest_verified(local_run)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"position": {"step": -1}}, "run.position.step: Input should be greater than or equal to 0"),
        ({"position": {"step": True}}, "run.position.step: Input should be a valid integer"),
        ({"corpus": {"uri": "a"}}, "run.corpus.sha256: Field required"),
        ({"surplus": 1}, "run.surplus: Extra inputs are not permitted"),
    ],
)
def test_a_header_with_a_wrong_field_names_it(
    local_run: str, change: dict[str, object], problem: str
) -> None:
    save_steps(local_run, [1])
    uri = storage.join(folder_of(local_run, 1), MANIFEST)
    body = json.loads(storage.read_bytes(uri))
    body.pop("sha256")
    body["run"] |= change
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    storage.put_bytes(uri, json.dumps({**body, "sha256": digest}).encode())
    with pytest.raises(CheckpointError, match=f"not a checkpoint manifest: {problem}"):
        latest_verified(local_run)
