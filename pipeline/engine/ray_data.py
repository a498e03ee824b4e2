"""Maps a function over items with Ray Data.

This module contains everything that the build relies on in Ray Data: small picklable items as input, one task
for several small items, and one-line errors of tasks without Ray's wrapper.
"""

import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import ray

from pipeline.engine.partitions import MOST_MAP_TASKS
from pipeline.engine.progress import report_failure
from schemas import errors
from schemas.errors import BertmillError

GROUP_BYTES = 8 << 20
_ITEM_BYTES = 16 << 10
_GROUPS_PER_CORE = 8
_GROUP, _RESULT = "group", "result"

Item = TypeVar("Item")
Result = TypeVar("Result")
Size = Callable[[Item], int]

_ADDED_BY_RAY = "\nFailed to apply UDF transform after"
_EXPECTED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$", re.MULTILINE)

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
# Faults of machines and effects of other processes, not faults of the work.
_NODE_FAULTS = (
    ray.exceptions.GetTimeoutError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    errors.ShuffleLostError,
)


def retry_on_node_loss(name: str, stage: Callable[[], Result]) -> Result:
    """The result of ``stage``. If a lost node makes the stage fail, reruns it from its committed units.

    Ray usually, but not always, reruns the tasks of a lost node. There are at most four retries.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return stage()
        except Exception as error:
            fault = _cause(error, _NODE_FAULTS)
            if fault is None or attempt == _ATTEMPTS:
                report_failure(name)
                raise
            logger.warning(
                "%s: interrupted (%s) on attempt %d of %d; resuming from committed units",
                *(name, type(fault).__name__, attempt, _ATTEMPTS),
            )
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raises an expected error of a task as itself, without Ray's wrapper."""
    try:
        yield
    except Exception as error:
        expected = _expected_cause(error)
        if expected is None:
            raise
        raise expected from None


def _expected_cause(error: BaseException) -> BertmillError | None:
    cause = _cause(error, (BertmillError,))
    # Ray raises an object of a class derived from RayTaskError and the class of the original, and wraps the
    # original in it.
    inner = getattr(cause, "cause", None)
    expected = inner if isinstance(inner, BertmillError) else cause
    if not isinstance(expected, BertmillError):
        return _error_in_text(error)
    # Ray Data may append how to retry, which is about Ray and not about the work.
    text, _, added = str(expected).partition(_ADDED_BY_RAY)
    return type(expected)(text) if added else expected


def _error_in_text(error: BaseException) -> BertmillError | None:
    """The expected error from the end of the text of a task's error.

    Ray Data wraps what a task raises, and pickle drops the cause of the wrapper between processes. Only the
    text remains.
    """
    if not isinstance(error, ray.exceptions.RayTaskError):
        return None
    lines = _EXPECTED.findall(str(error))
    kind = getattr(errors, lines[-1][0], None) if lines else None
    return kind(lines[-1][1]) if kind is not None and issubclass(kind, BertmillError) else None


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


def grouped(items: Sequence[Item], sizes: Sequence[int], cores: float) -> list[list[Item]]:
    """Groups neighboring items, in order, until a group has enough work for a task.

    ``sizes`` are the bytes of each item. Every task has an overhead of tens of milliseconds. A group has at
    most GROUP_BYTES, unless a single item is larger, and every core gets several groups. Opening an item also
    counts as some bytes. More than 4,096 groups would need too much memory on the driver, so groups grow
    instead.
    """
    weights = [size + _ITEM_BYTES for size in sizes]
    total = sum(weights)
    # Two neighboring groups together hold more than the target of one, which bounds their number.
    least = 2 * total / MOST_MAP_TASKS
    target = max(min(GROUP_BYTES, total / (_GROUPS_PER_CORE * max(1.0, cores))), least)
    groups: list[list[Item]] = []
    group_weight = 0
    for item, weight in zip(items, weights, strict=True):
        if groups and group_weight + weight <= target:
            groups[-1].append(item)
            group_weight += weight
        else:
            groups.append([item])
            group_weight = weight
    return groups


def _dataset(items: Sequence[Item], size: Size[Item] | None) -> ray.data.Dataset:
    """One pickled block for each group. Without pickling, Ray would spend time inferring a schema."""
    sizes = [GROUP_BYTES if size is None else size(item) for item in items]
    groups = grouped(items, sizes, ray.cluster_resources().get("CPU", 1.0))
    rows = [{_GROUP: pickle.dumps(group)} for group in groups]
    return ray.data.from_items(rows, override_num_blocks=len(rows))


def map_items(
    items: Sequence[Item], work: Callable[[Item], Result], size: Size[Item] | None = None
) -> Iterator[Result]:
    """Runs ``work`` on every item in parallel. Yields the small results as they arrive.

    ``size`` gives the bytes of an item, so that one task can process several small ones. Without it every
    item is a task. Tasks run in the driver's working directory on nodes that have it, because the config's
    relative paths start there and an existing Ray cluster started elsewhere. They have the driver's module
    search path.
    """
    if not items:
        return
    folder, search_path = Path.cwd(), list(sys.path)

    def work_on_group(row: dict[str, Any]) -> Iterator[dict[str, bytes]]:
        sys.path += [entry for entry in search_path if entry not in sys.path]
        with chdir(folder) if folder.is_dir() else nullcontext():
            for item in pickle.loads(row[_GROUP]):  # noqa: S301 - the driver's own items
                yield {_RESULT: pickle.dumps(work(item))}

    with plain_errors():
        yield from _results(_dataset(items, size).flat_map(work_on_group))


def _results(dataset: ray.data.Dataset) -> Iterator[Any]:
    for row in dataset.iter_rows():
        yield pickle.loads(row[_RESULT])  # noqa: S301 - written by our own tasks
