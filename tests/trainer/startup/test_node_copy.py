"""Each machine reads a checkpoint from storage once, and small checkpoints of few ranks stay whole."""

import re
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.trainer.runs import Group, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders
from trainer.startup.checkpoint_size import is_sharded


@pytest.mark.s3
def test_two_ranks_of_a_machine_download_a_checkpoint_once(
    tmp_path: Path, proxy: FaultProxy, s3_folder: str
) -> None:
    config = train_config(
        tmp_path,
        write_corpus(tmp_path / "corpus"),
        run={"name": "run", "storage": s3_folder, "accept_changes": ["phases"]},
        checkpoints={"every_steps": 4, "every_seconds": None, "format": "sharded"},
    )
    config["phases"][0]["steps"] = 8
    Group(write_config(tmp_path, config), ranks=2).finish()
    newest = list_folders(f"{s3_folder}/run")[0]
    assert newest.step == 8
    before = len(proxy.requests)
    config["phases"][0]["steps"] = 12
    Group(write_config(tmp_path, config), ranks=2).finish()
    assert list_folders(f"{s3_folder}/run")[0].step == 12
    name = newest.uri.rpartition("/")[2]
    reads = [
        match[1]
        for method, target in proxy.requests[before:]
        if method == "GET" and (match := re.search(rf"{name}/([\w.-]+\.(?:safetensors|pt))", target))
    ]
    assert sorted(reads) == sorted(file for file in newest.files if file.endswith((".safetensors", ".pt")))
    assert len(reads) == 3


@pytest.mark.parametrize(
    ("size", "ranks", "sharded"),
    [(10**6, 2, False), (2 * 10**9, 1, False), (2 * 10**9, 2, True), (10**6, 15, False), (10**6, 16, True)],
)
def test_large_checkpoints_and_many_ranks_are_sharded(size: int, ranks: int, sharded: bool) -> None:
    assert is_sharded("auto", size, ranks) is sharded
    assert is_sharded("sharded", size, ranks) is True
    assert is_sharded("whole", size, ranks) is False
