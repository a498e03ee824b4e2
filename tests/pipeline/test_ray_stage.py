"""A stage that machines took down is begun again; one that failed by itself is not."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from cluster.ray_connection import use_all_cpus
from pipeline.ray_stage import BUCKET, GROUP_BYTES, SIZE, grouped, map_units, persistently, shuffle_units
from schemas.errors import InputError, StorageError
from tests.ray_cluster import RayCluster

BARE = pa.schema([])
NUMBERS = pa.schema([pa.field("number", pa.int64())])


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
    """As Ray brings a task's error back."""
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
    assert persistently("instances", stage) == "done"
    assert stage.calls == 3
    assert "instances: broken off" in caplog.text


@pytest.mark.parametrize(
    "error", [InputError("dump.xml.bz2: truncated"), KeyError("a bug"), _wrapped(KeyError())]
)
def test_faults_of_the_work_are_not_repeated(error: Exception) -> None:
    stage = Stage(error)
    with pytest.raises(type(error)):
        persistently("instances", stage)
    assert stage.calls == 1


def test_the_last_attempt_raises_what_it_met() -> None:
    stage = Stage(*[ray.exceptions.WorkerCrashedError() for _ in range(9)])
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        persistently("extract", stage)
    assert stage.calls == 5


@pytest.mark.ray
def test_an_expected_error_of_a_task_comes_out_as_itself(ray_session: RayCluster) -> None:
    """Through both ways, also with a cause of its own, which Ray's wrapping loses between processes."""

    def fail(_row: dict[str, int]) -> dict[str, int]:
        reason = OSError(28, "No space left on device")
        raise StorageError("/disk/part.parquet: write: No space left on device") from reason

    def fail_to_emit(row: dict[str, int]) -> Iterator[pa.Table]:
        fail(row)
        yield pa.table({BUCKET: [0]})

    def give(_bucket: int, _table: pa.Table) -> dict[str, int]:
        return {"rows": 1}

    for results in (map_units([{"a": 1}], fail), shuffle_units([{"a": 1}], fail_to_emit, give, 1, BARE)):
        with pytest.raises(StorageError, match=r"^/disk/part\.parquet: write: No space left on device$"):
            list(results)


@given(st.lists(st.none() | st.integers(0, 3 * GROUP_BYTES), min_size=1, max_size=300), st.floats(0, 5000))
def test_groups_hold_all_items_in_order_and_no_more_than_a_task_should(
    sizes: list[int | None], cores: float
) -> None:
    items = [{"number": number} | ({} if size is None else {SIZE: size}) for number, size in enumerate(sizes)]
    groups = grouped(items, cores)
    assert [item for group in groups for item in group] == items
    for group in groups:
        assert len(group) == 1 or sum(item[SIZE] for item in group) <= GROUP_BYTES
        assert len(group) == 1 or all(SIZE in item for item in group)


def test_small_items_share_tasks_and_every_core_has_several() -> None:
    items = [{SIZE: 1000}] * 2000
    assert 16 <= len(grouped(items, 2)) <= 20
    assert len(grouped([{SIZE: 1 << 20}] * 64, 1)) == 10
    # A hundred thousand units of a large build: the driver holds no more than a few thousand blocks.
    assert len(grouped([{SIZE: 16 << 20}] * 100_000, 2000)) <= 4096


@pytest.mark.ray
def test_every_item_of_a_group_gives_its_result(ray_session: RayCluster) -> None:
    items = [
        {"unit": {"name": "\ud800 page", "also": []}, "number": number, SIZE: 10} for number in range(50)
    ]
    found = map_units(
        items, lambda item: {"number": item["number"], "name": item["unit"]["name"] == "\ud800 page"}
    )
    assert sorted(row["number"] for row in found if row["name"]) == list(range(50))

    def emit(item: dict[str, int]) -> Iterator[pa.Table]:
        yield pa.table({BUCKET: [item["number"] % 3], "number": [item["number"]]})

    def add_up(bucket: int, table: pa.Table) -> dict[str, int]:
        return {"bucket": bucket, "sum": sum(table["number"].to_pylist())}

    sums = {row["bucket"]: row["sum"] for row in shuffle_units(items, emit, add_up, 3, NUMBERS)}
    assert sums == {bucket: sum(range(bucket, 50, 3)) for bucket in range(3)}


@pytest.mark.ray
def test_a_shuffle_begins_on_all_cpus(ray_session: RayCluster, tmp_path: Path) -> None:
    """Ray Data would keep half of them for the steps that follow: then the four never meet."""
    context = ray.data.DataContext.get_current()
    before = context.op_resource_reservation_enabled, context.op_resource_reservation_ratio
    use_all_cpus()

    def meet(item: dict[str, int]) -> Iterator[pa.Table]:
        (tmp_path / str(item["number"])).touch()
        deadline = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < 4:
            if time.monotonic() > deadline:
                raise InputError("the others did not come")
            time.sleep(0.05)
        yield pa.table({BUCKET: [0], "number": [item["number"]]})

    items = [{"number": number} for number in range(4)]
    try:
        found = list(shuffle_units(items, meet, lambda _, table: {"rows": table.num_rows}, 1, NUMBERS))
    finally:
        context.op_resource_reservation_enabled, context.op_resource_reservation_ratio = before
    assert found == [{"rows": 4}]


@pytest.mark.ray
@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
@pytest.mark.parametrize("giving", [{0}, {3}, {1, 2}, {0, 3}, set()], ids=str)
def test_tasks_that_emit_nothing_do_not_break_the_others(
    ray_session: RayCluster, giving: set[int], buckets: int
) -> None:
    """A build that goes on with a few buckets has units without a row for them: some, all, first or last."""

    def emit(item: dict[str, int]) -> Iterator[pa.Table]:
        if item["number"] in giving:
            yield pa.table({BUCKET: list(range(buckets)), "number": [item["number"]] * buckets})

    def add_up(bucket: int, table: pa.Table) -> dict[str, int]:
        return {"bucket": bucket, "sum": sum(table["number"].to_pylist())}

    items = [{"number": number} for number in range(4)]
    sums = {row["bucket"]: row["sum"] for row in shuffle_units(items, emit, add_up, buckets, NUMBERS)}
    assert sums == ({bucket: sum(giving) for bucket in range(buckets)} if giving else {})
