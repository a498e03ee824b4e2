"""Tests that a stage restarts after the loss of a node, but not after its own failure."""

import importlib
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from cluster.ray_cluster.connection import use_all_cpus
from pipeline.engine.ray_data import (
    GROUP_BYTES,
    grouped,
    map_items,
    retry_on_node_loss,
)
from schemas.errors import InputError, StorageError
from tests.support.ray_cluster import RayCluster
from tests.support.waiting import HANG_SECONDS


class Stage:
    """Fails with each of ``errors`` in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def _wrapped(cause: Exception) -> Exception:
    """A task's error as Ray returns it."""
    error = RuntimeError("wrapping")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.GetTimeoutError("no shard"),
        ray.exceptions.WorkerCrashedError(),
        ray.exceptions.NodeDiedError("node"),
        _wrapped(ray.exceptions.GetTimeoutError("no shard")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_faults_of_machines_are_outlived(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(error, error)
    assert retry_on_node_loss("instances", stage) == "done"
    assert stage.calls == 3
    assert "instances: interrupted" in caplog.text


@pytest.mark.parametrize(
    "error", [InputError("dump.xml.bz2: truncated"), KeyError("a bug"), _wrapped(KeyError())]
)
def test_faults_of_the_work_are_not_repeated(error: Exception) -> None:
    stage = Stage(error)
    with pytest.raises(type(error)):
        retry_on_node_loss("instances", stage)
    assert stage.calls == 1


def test_the_last_attempt_raises_what_it_met() -> None:
    stage = Stage(*[ray.exceptions.WorkerCrashedError() for _ in range(9)])
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        retry_on_node_loss("extract", stage)
    assert stage.calls == 5


@pytest.mark.ray
def test_an_expected_error_of_a_task_comes_out_as_itself(ray_session: RayCluster) -> None:
    """Even with a cause, which Ray's wrapper loses between processes."""

    def fail(_item: int) -> int:
        reason = OSError(28, "No space left on device")
        raise StorageError("/disk/part.parquet: write: No space left on device") from reason

    with pytest.raises(StorageError, match=r"^/disk/part\.parquet: write: No space left on device$"):
        list(map_items([1], fail))


@given(st.lists(st.integers(0, 3 * GROUP_BYTES), min_size=1, max_size=300), st.floats(0, 5000))
def test_groups_hold_all_items_in_order_and_no_more_than_a_task_should(
    sizes: list[int], cores: float
) -> None:
    items = list(enumerate(sizes))
    groups = grouped(items, sizes, cores)
    assert [item for group in groups for item in group] == items
    for group in groups:
        assert len(group) == 1 or sum(size for _, size in group) <= GROUP_BYTES


def test_small_items_share_tasks_and_every_core_has_several() -> None:
    def groups(size: int, items: int, cores: float) -> int:
        return len(grouped(range(items), [size] * items, cores))

    assert 16 <= groups(1000, 2000, 2) <= 20
    assert groups(1 << 20, 64, 1) == 10
    assert groups(GROUP_BYTES, 5, 1) == 5
    # For the hundred thousand units of a large build, the driver holds at most a few thousand blocks.
    assert groups(16 << 20, 100_000, 2000) <= 4096


@dataclass(frozen=True)
class Numbered:
    number: int
    name: str = "\ud800 page"


@pytest.mark.ray
def test_every_item_of_a_group_gives_its_result(ray_session: RayCluster) -> None:
    items = [Numbered(number) for number in range(50)]
    found = map_items(items, lambda item: (item.number, item.name), lambda _: 10)
    assert sorted(found) == [(number, "\ud800 page") for number in range(50)]


@pytest.mark.ray
def test_tasks_import_from_where_the_driver_does(
    ray_session: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's Ray, like any Ray cluster that a build joins, was started without the folder."""
    (tmp_path / "only_on_the_driver.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def work(_: int) -> int:
        return int(importlib.import_module("only_on_the_driver").ANSWER)

    assert list(map_items([1], work)) == [42]


@pytest.mark.ray
def test_tasks_use_all_cpus(ray_session: RayCluster, tmp_path: Path) -> None:
    """By default Ray Data reserves half of them for later steps. Then the four tasks would never meet."""
    context = ray.data.DataContext.get_current()
    before = context.op_resource_reservation_enabled, context.op_resource_reservation_ratio
    use_all_cpus()

    def meet(item: int) -> int:
        (tmp_path / str(item)).touch()
        deadline = time.monotonic() + HANG_SECONDS
        while len(list(tmp_path.iterdir())) < 4:
            if time.monotonic() > deadline:
                raise InputError("the others did not come")
            time.sleep(0.05)
        return item

    try:
        found = list(map_items(range(4), meet))
    finally:
        context.op_resource_reservation_enabled, context.op_resource_reservation_ratio = before
    assert sorted(found) == [0, 1, 2, 3]
