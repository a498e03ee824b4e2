"""When a failed training is restarted: budget, back-off, and the same failure twice."""

from dataclasses import replace

import pytest
import ray
from ray.train import ControllerError, WorkerGroupError

from schemas.errors import StorageError
from trainer.launcher.restarts import Failure, RestartBudget
from trainer.launcher.worker_group import NodeLeavesError, failed_step, failure_of

DIED = Failure("rank 1: the process is dead", rank=1, died=True)


def noted(error: Exception, step: int) -> Exception:
    error.add_note(f"in optimizer step {step}")
    named = failed_step(error)
    assert named is not None
    return named


def test_a_new_checkpoint_renews_the_budget() -> None:
    budget = RestartBudget("run", 1)
    assert [budget.delay_after(DIED, step) for step in (0, 10, 20, 30)] == [0.0] * 4
    with pytest.raises(
        StorageError, match=r"^run: training failed 2 times since the checkpoint of step 30 \(.* 1\): rank 1"
    ):
        budget.delay_after(DIED, 30)


def test_failures_without_progress_wait_longer_and_longer_up_to_a_limit() -> None:
    budget = RestartBudget("run", -1)
    delays = [budget.delay_after(DIED, 5) for _ in range(12)]
    assert delays[:4] == [0.0, 5.0, 10.0, 20.0]
    assert delays == sorted(delays)
    assert delays[-1] == 300.0
    assert budget.delay_after(DIED, 6) == 0.0


def test_a_node_that_is_taken_away_does_not_count() -> None:
    budget = RestartBudget("run", 0)
    assert [budget.delay_after(replace(DIED, preempted=True), 0) for _ in range(9)] == [0.0] * 9


@pytest.mark.parametrize("limit", [3, -1])
def test_the_same_step_that_fails_twice_in_the_same_way_ends_the_run(limit: int) -> None:
    budget = RestartBudget("run", limit)
    budget.delay_after(Failure("rank 0: CUDA error at 0x7f12", 0, step=37), 32)
    # A checkpoint in between does not count as progress when the same step fails again.
    with pytest.raises(StorageError, match="failed twice in step 37 in the same way"):
        budget.delay_after(Failure("rank 3: CUDA error at 0x7f99", 3, step=37), 36)


def test_other_steps_and_other_failures_are_not_the_same() -> None:
    budget = RestartBudget("run", 3)
    for text, step in (("rank 0: CUDA error", 37), ("rank 0: CUDA error", 38), ("rank 0: no memory", 38)):
        budget.delay_after(Failure(text, 0, step), 32)


def test_a_process_that_dies_twice_after_the_same_line_of_the_log_ends_a_limited_run() -> None:
    killed = replace(DIED, step=30)
    unlimited = RestartBudget("run", -1)
    assert [unlimited.delay_after(killed, 5) for _ in range(2)] == [0.0, 5.0]
    for other in (replace(killed, rank=2), replace(killed, step=40), replace(killed, step=None)):
        budget = RestartBudget("run", 3)
        budget.delay_after(killed, 5)
        budget.delay_after(other, 5)
    budget = RestartBudget("run", 3)
    budget.delay_after(killed, 5)
    with pytest.raises(StorageError, match="failed twice after step 30 in the same way"):
        budget.delay_after(killed, 5)


def test_what_ray_reports_becomes_one_line_with_rank_and_step() -> None:
    error = WorkerGroupError("", {1: noted(RuntimeError("CUDA error\nillegal access"), 8)})
    assert failure_of(error, 5) == Failure("rank 1: illegal access", 1, step=8)
    error = WorkerGroupError("", {0: ValueError("wrong"), 1: ValueError("other")})
    assert failure_of(error, 5) == Failure("rank 0: wrong", 0)
    assert failure_of(ControllerError(RuntimeError("no actor")), 5) == Failure("no actor")


def test_the_death_of_a_rank_explains_the_errors_of_the_others() -> None:
    dead = ray.exceptions.RayActorError(error_msg="The actor died.\nkilled by the OOM killer")
    error = WorkerGroupError("", {0: noted(RuntimeError("connection closed"), 8), 1: dead})
    assert failure_of(error, 5) == Failure("rank 1: killed by the OOM killer", 1, step=5, died=True)


def test_a_drained_or_preempted_node_is_recognized() -> None:
    preempted = ray.exceptions.RayActorError(error_msg="gone", preempted=True)
    for cause in (preempted, NodeLeavesError("step 8 is saved")):
        assert failure_of(WorkerGroupError("", {0: RuntimeError("reset"), 1: cause}), 5).preempted
