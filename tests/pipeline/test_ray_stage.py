"""A stage that machines took down is begun again; one that failed by itself is not."""

import pytest
import ray

from pipeline.ray_stage import persistently
from schemas.errors import InputError


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
