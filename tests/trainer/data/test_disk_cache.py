"""Row groups of remote shards on a local disk."""

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cluster import storage
from schemas.errors import ConfigError
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.data.corpus import open_corpus
from trainer.data.disk_cache import DiskCache
from trainer.data.rows import ShardRows
from trainer.distributed.ranks import single_rank
from trainer.run.loop import train


def table(number: int, rows: int = 200) -> pa.Table:
    return pa.table({"a": pa.array(range(number, number + rows)), "b": [[number]] * rows})


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    assert cache.get("a") is None
    cache.put("a", table(1))
    assert cache.get("a") == table(1)
    assert DiskCache(tmp_path, 1 << 20).get("a") == table(1)
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_damaged_file_is_dropped(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put("a", table(1))
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    for damaged in (bytes(raw[:-9]), b"", bytes(raw[:100] + b"x" + raw[101:])):
        path.write_bytes(damaged)
        assert cache.get("a") is None
        assert not path.exists()
    assert cache.damaged == 3


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 20_000)
    for number in range(60):
        cache.put(str(number), table(number))
        assert cache.get("0") is not None
        assert bytes_of(tmp_path) <= 20_000
    assert cache.get("59") is not None
    assert cache.get("1") is None


def test_two_caches_on_one_folder_keep_to_the_limit_together(tmp_path: Path) -> None:
    def fill(name: str) -> None:
        cache = DiskCache(tmp_path, 30_000)
        for number in range(80):
            cache.put(f"{name} {number}", table(number))
            assert cache.get(f"{name} {number // 2}") in (None, table(number // 2))

    threads = [threading.Thread(target=fill, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = DiskCache(tmp_path, 30_000)
    last.put("last", table(0))
    assert bytes_of(tmp_path) <= 2 * 30_000


def test_a_disk_that_refuses_is_counted_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path, 1 << 20)

    def full(self: Any, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    cache.put("a", table(1))
    assert cache.refused == 1
    assert cache.get("a") is None
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def remote(s3_folder: str, tmp_path: Path) -> str:
    """The URI of the manifest of a corpus on S3."""
    manifest = write_corpus(tmp_path / "corpus", lengths=(32,))
    for path in (tmp_path / "corpus").rglob("*"):
        if path.is_file():
            storage.upload_file(path, storage.join(s3_folder, path.relative_to(manifest.parent).as_posix()))
    return storage.join(s3_folder, "manifest.json")


@pytest.mark.s3
def test_remote_row_groups_are_read_once(remote: str, tmp_path: Path) -> None:
    corpus = open_corpus(remote)
    disk = DiskCache(tmp_path / "cache", 1 << 20)

    def read_all() -> list[Any]:
        rows = ShardRows(corpus.passes(32), corpus.limits(32), disk=disk)
        places = [
            (s, g) for s, place in enumerate(corpus.passes(32)[0]) for g in range(len(place.row_groups))
        ]
        return [rows.group(0, shard, group).input_ids.tolist() for shard, group in places]

    first = read_all()
    for info in storage.list_files(remote.rpartition("/")[0]):
        if info.uri.endswith(".parquet"):
            storage.delete(info.uri)
    assert read_all() == first
    assert (disk.hits, disk.misses) == (len(first), len(first))


@pytest.mark.s3
def test_a_whole_run_on_s3_with_a_disk_cache(remote: str, s3_folder: str, tmp_path: Path) -> None:
    config = train_config(tmp_path, remote, phases=[phase(32, 16, 128, steps=8)])
    config["run"]["storage"] = storage.join(s3_folder, "runs")
    config["data"] |= {"disk_cache": str(tmp_path / "cache")}
    outcome = train(TrainConfig.model_validate(config), single_rank())
    assert str(outcome.checkpoint).startswith("s3://")
    assert list((tmp_path / "cache").iterdir())
    local = train_config(
        tmp_path, tmp_path / "corpus" / "manifest.json", phases=[phase(32, 16, 128, steps=8)]
    )
    train(TrainConfig.model_validate(local), single_rank())
    storage.download_file(
        storage.join(outcome.run_uri, "metrics/attempt-000001/rank-00000.jsonl"),
        tmp_path / "remote" / "metrics" / "attempt-000001" / "rank-00000.jsonl",
    )
    assert History(tmp_path / "remote").losses() == History(tmp_path / "runs" / "run").losses()


def test_partial_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """The limit does not count these files, so they would grow forever."""
    old, young, strange = (tmp_path / name for name in (f".{'a' * 16}", f".{'b' * 16}", ".bashrc"))
    for path in (old, young, strange):
        path.write_bytes(b"x")
        os.utime(path, (1, 1) if path != young else None)
    DiskCache(tmp_path, 1 << 20)
    assert sorted(tmp_path.iterdir()) == sorted([young, strange])


def test_a_file_that_cannot_be_read_is_read_from_its_source(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put("a", table(1))
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    assert cache.get("a") is None
    assert cache.damaged == 1
    cache.put("a", table(1))  # fails: the path is a folder
    assert cache.refused == 1


def test_a_folder_that_cannot_be_made_is_the_configs_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data\.disk_cache: .*/file/below: Not a directory"):
        DiskCache(tmp_path / "file" / "below", 1 << 20)
