"""The two ways a stage uses Ray Data: a map over units, and a shuffle into buckets.

Everything about Ray Data that the build relies on is here: small items as input, one task for
several small units, keyed groups, errors of a task brought back as the one line they were raised with.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import ray

from pipeline.progress import tell_failed
from schemas import errors
from schemas.errors import BertmillError

BUCKET = "bucket"
# What an item of work calls its size in bytes. One that does not tell is the work of one task.
SIZE = "text_bytes"
GROUP_BYTES = 8 << 20
_ITEM_BYTES = 16 << 10
_GROUPS_PER_CORE = 8
_MAX_GROUPS = 4096
# Every gigabyte that moves is cut into as many pieces, and the driver keeps some kilobytes for each piece
# (rates.json, kb_per_piece): buckets beyond this number share a partition.
MAX_PARTITIONS = 2048
_GROUP = "group"

Row = dict[str, Any]
Result = TypeVar("Result")

_ADDED_BY_RAY = "\nFailed to apply UDF transform after"
_EXPECTED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$", re.MULTILINE)

LOG = logging.getLogger("bertmill.build")

_ATTEMPTS = 5
# Faults of machines, not of the work.
_PASSING = (
    ray.exceptions.GetTimeoutError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
)


def persistently(name: str, stage: Callable[[], Result]) -> Result:
    """The result of ``stage``, begun again when machines took it down: it goes on from what is committed.

    Ray computes lost objects again by itself, but not always: when every CPU that is left runs a reduction
    that waits for a lost object, none is left to compute it. The reduction then gives up (see
    quiet_ray_data), and the stage is begun again, at most four times.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return stage()
        except Exception as error:
            passing = _cause(error, _PASSING)
            if passing is None or attempt == _ATTEMPTS:
                tell_failed(name)
                raise
            reason = type(passing).__name__
            LOG.warning("%s: broken off (%s), attempt %d; going on from what is done", name, reason, attempt)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Lets an expected error of a task surface as itself instead of Ray's wrapping of it."""
    try:
        yield
    except Exception as error:
        expected = _expected_cause(error)
        if expected is None:
            raise
        raise expected from None


def _expected_cause(error: BaseException) -> BertmillError | None:
    found = _cause(error, (BertmillError,))
    # Ray raises an object of a class made of RayTaskError and the original's; the original is in it.
    inner = getattr(found, "cause", None)
    expected = inner if isinstance(inner, BertmillError) else found
    if not isinstance(expected, BertmillError):
        return _told_in(error)
    # Ray Data may have added how to make it try again, which is about Ray and not about the work.
    text, _, added = str(expected).partition(_ADDED_BY_RAY)
    return type(expected)(text) if added else expected


def _told_in(error: BaseException) -> BertmillError | None:
    """The expected error that the text of a task's error ends with.

    Ray Data wraps what a task raises, and the cause of the wrapping is lost between processes (pickle keeps
    no cause); its text goes through.
    """
    if not isinstance(error, ray.exceptions.RayTaskError):
        return None
    told = _EXPECTED.findall(str(error))
    kind = getattr(errors, told[-1][0], None) if told else None
    return kind(told[-1][1]) if kind is not None and issubclass(kind, BertmillError) else None


def _cause(error: BaseException, kinds: tuple[type[Any], ...]) -> Any:
    """The first of ``kinds`` among the error and its causes, or None."""
    seen: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop()
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, kinds):
            return current
        queue += [current.__cause__, current.__context__, getattr(current, "cause", None)]
    return None


def grouped(items: list[Row], cores: float) -> list[list[Row]]:
    """Neighbours put together until a group holds enough for a task; their order stays.

    A task costs tens of milliseconds whatever it does. A group has at most GROUP_BYTES, but for an item that
    is larger by itself, and every core gets several groups; opening an item counts as some bytes, too. Of
    more than 4,096 groups the driver would hold too much: they grow instead.
    """
    weights = [item.get(SIZE, GROUP_BYTES) + _ITEM_BYTES for item in items]
    total = sum(weights)
    # Two neighbouring groups together hold more than is wanted of one, which bounds their number.
    least = 2 * total / _MAX_GROUPS
    wanted = max(min(GROUP_BYTES, total / (_GROUPS_PER_CORE * max(1.0, cores))), least)
    groups: list[list[Row]] = []
    held = 0
    for item, weight in zip(items, weights, strict=True):
        if groups and held + weight <= wanted:
            groups[-1].append(item)
            held += weight
        else:
            groups.append([item])
            held = weight
    return groups


def _dataset(items: list[Row]) -> ray.data.Dataset:
    """One block for each group. As JSON: Ray would look for a schema in the items, which takes longer."""
    groups = grouped(items, ray.cluster_resources().get("CPU", 1.0))
    rows = [{_GROUP: json.dumps(group)} for group in groups]
    return ray.data.from_items(rows, override_num_blocks=len(rows))


def map_units(items: list[Row], work: Callable[[Row], Row]) -> Iterator[Row]:
    """``work`` on every item, in parallel, results as they come. Each result is a small row.

    Items can be JSON. Several that are small, by what they say under SIZE, are the work of one task. It is
    done in the driver's folder, on nodes that have it: relative paths of a config are meant from there, and
    a Ray that was joined has been started elsewhere.
    """
    if not items:
        return
    folder = Path.cwd()

    def work_on_group(row: Row) -> Iterator[Row]:
        with chdir(folder) if folder.is_dir() else nullcontext():
            yield from map(work, json.loads(row[_GROUP]))

    with plain_errors():
        yield from _dataset(items).flat_map(work_on_group).iter_rows()


def shuffle_units(
    items: list[Row],
    emit: Callable[[Row], Iterator[pa.Table]],
    reduce: Callable[[int, pa.Table], Row],
    buckets: int,
    schema: pa.Schema,
) -> Iterator[Row]:
    """Moves what ``emit`` yields for each item to its bucket, then reduces every bucket by itself.

    Emitted tables carry the columns of ``schema`` and an integer column ``bucket`` of ``buckets`` values at
    most. ``reduce`` gets the rows of one bucket in no particular order, so it must not depend on it; it
    returns a small row. Items as in `map_units`.
    """
    if not items:
        return
    names = [name for name in schema.names if name != BUCKET]
    moved = pa.schema([*(schema.field(name) for name in names), pa.field(BUCKET, pa.int64())])

    def emit_batch(batch: pa.Table) -> Iterator[pa.Table]:
        # A task that yields nothing leaves a block without columns, and such a block cannot be put together
        # with others: Ray Data then fails, or not, depending on which tasks have rows.
        yield moved.empty_table()
        for group in batch[_GROUP].to_pylist():
            for item in json.loads(group):
                for table in emit(item):
                    yield table.select(moved.names).cast(moved)

    def reduce_group(group: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([reduce(group[BUCKET][0].as_py(), group)])

    emitted = _dataset(items).map_batches(emit_batch, batch_format="pyarrow", batch_size=1)
    grouped_by = emitted.groupby(BUCKET, num_partitions=min(buckets, MAX_PARTITIONS))
    with plain_errors():
        yield from grouped_by.map_groups(reduce_group, batch_format="pyarrow").iter_rows()
