"""Tests that verify finds the same in several processes, and that a killed process is an error."""

import os
from pathlib import Path

import pytest

from pipeline.verify.corpus import verify_corpus
from pipeline.verify.processes import map_in_processes
from schemas.errors import CorpusError
from tests.pipeline.small_corpus import build_small_corpus


@pytest.fixture(autouse=True)
def _small_work_gets_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{map_in_processes.__module__}.BYTES_PER_PROCESS", 1)


def test_processes_find_the_same_problems(tmp_path: Path) -> None:
    corpus = build_small_corpus(tmp_path / "corpus")
    sound = verify_corpus(str(corpus.folder), cores=2)
    assert sound.sound
    assert sound == verify_corpus(str(corpus.folder), cores=1)
    data = corpus.shard(2).read_bytes()
    corpus.shard(2).write_bytes(data[: len(data) // 2])
    corpus.shard(0).unlink()
    damaged = verify_corpus(str(corpus.folder), cores=2)
    assert len(damaged.problems) >= 3
    assert damaged == verify_corpus(str(corpus.folder), cores=1)


def test_a_killed_process_is_an_error_that_names_the_option() -> None:
    with pytest.raises(CorpusError, match=r"use fewer than 2 cores \(--cores\)"):
        list(map_in_processes(os._exit, [1, 1], 2, cores=2))


def test_results_are_in_the_order_of_the_items() -> None:
    assert list(map_in_processes(str, list(range(20)), 20, cores=2)) == [str(item) for item in range(20)]
