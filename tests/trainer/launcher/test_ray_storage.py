"""The run's storage as Ray Train sees it: all files are readable, and Ray cannot damage a run."""

import json
import logging
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from cluster import storage
from trainer.launcher.ray_storage import filesystem_of

PLACES = ["file", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture(params=PLACES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A run's folder with one checkpoint."""
    uri = str(tmp_path / "run") if request.param == "file" else request.getfixturevalue("s3_folder")
    storage.put_bytes(f"{uri}/checkpoints/step-00000004.000001-aa/MANIFEST.json", b"{}")
    storage.put_bytes(f"{uri}/checkpoints/step-00000004.000001-aa/model.safetensors", b"weights")
    return str(uri)


def test_a_checkpoint_is_read_through_it(run: str, tmp_path: Path) -> None:
    seen, path = filesystem_of(run)
    again = pickle.loads(pickle.dumps(seen))
    assert seen == again == filesystem_of(f"{run}/checkpoints")[0]
    assert seen != fs.LocalFileSystem()
    folder = f"{path}/checkpoints/step-00000004.000001-aa"
    (tmp_path / "copy").mkdir()
    pa.fs.copy_files(folder, str(tmp_path / "copy"), source_filesystem=again)
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "copy" / "MANIFEST.json").read_bytes() == b"{}"
    kinds = {info.path: info.type for info in seen.get_file_info(fs.FileSelector(path, recursive=True))}
    assert kinds == {
        f"{path}/checkpoints": fs.FileType.Directory,
        folder: fs.FileType.Directory,
        f"{folder}/MANIFEST.json": fs.FileType.File,
        f"{folder}/model.safetensors": fs.FileType.File,
    }
    above = seen.get_file_info(fs.FileSelector(path))
    assert [(info.path, info.type) for info in above] == [(f"{path}/checkpoints", fs.FileType.Directory)]
    with pytest.raises(FileNotFoundError):
        seen.get_file_info(fs.FileSelector(f"{path}/nothing"))
    assert seen.get_file_info(fs.FileSelector(f"{path}/nothing", allow_not_found=True)) == []


def test_what_ray_forgets_is_not_deleted(run: str) -> None:
    seen, path = filesystem_of(run)
    folder = f"{path}/checkpoints/step-00000004.000001-aa"
    seen.delete_dir(folder)
    seen.delete_dir_contents(path)
    seen.delete_file(f"{folder}/MANIFEST.json")
    assert len(storage.list_files(run)) == 2
    # A checkpoint that our retention has deleted is not reported as missing, which would stop Ray.
    gone = seen.get_file_info(f"{path}/checkpoints/step-00000001.000001-aa")
    assert gone.type == fs.FileType.Directory
    assert seen.get_file_info(f"{path}/nothing").type == fs.FileType.NotFound


def test_the_record_is_written_and_never_found(run: str) -> None:
    seen, path = filesystem_of(run)
    record = f"{path}/checkpoint_manager_snapshot.json"
    seen.create_dir(path)
    with seen.open_output_stream(record) as stream:
        stream.write(json.dumps({"step": 4}).encode())
    assert json.loads(storage.read_bytes(f"{run}/checkpoint_manager_snapshot.json")) == {"step": 4}
    assert seen.get_file_info(record).type == fs.FileType.NotFound
    with seen.open_output_stream(f"{path}/.validate_storage_marker"):
        pass
    assert seen.get_file_info(f"{path}/.validate_storage_marker").is_file


def test_a_record_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_text("a file where a folder should be")
    seen, path = filesystem_of(str(tmp_path / "run"))
    with (
        caplog.at_level(logging.WARNING),
        seen.open_output_stream(f"{path}/checkpoint_manager_snapshot.json") as out,
    ):
        out.write(b"{}")
    assert "checkpoint_manager_snapshot.json: could not write Ray's record" in caplog.text


def test_files_of_a_run_are_never_moved(run: str) -> None:
    seen, path = filesystem_of(run)
    one = f"{path}/checkpoints/step-00000004.000001-aa/MANIFEST.json"
    for change in (seen.move, seen.copy_file):
        with pytest.raises(NotImplementedError, match=r"MANIFEST\.json: files of a run are not"):
            change(one, f"{path}/elsewhere")
    with pytest.raises(NotImplementedError, match="not appended to"):
        seen.open_append_stream(one)
