"""When a rise of the loss counts as lasting, which checkpoints are kept, and rewinding."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertmill.cli.command import main
from cluster.jobs.lease import Claimant, LeaseHeldError, acquire_lease
from schemas.errors import BertmillError, CheckpointError
from tests.trainer.runs import History, phase, train_config
from tests.trainer.states import save_steps, saved_steps
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.manifest import Trend
from trainer.checkpoint.reading import latest_verified
from trainer.config import Alarm, TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.run import rewind as rewinding
from trainer.run.loop import Outcome, train
from trainer.run.loss_trend import add_held_out, add_line, add_save, alarm_error, kept_steps, problem
from trainer.run.rewind import rewind

ALARM = Alarm(lines=3, rise=1.0)


def follow(losses: list[float], alarm: Alarm = ALARM, phase: int = 0) -> list[str | None]:
    """The problem after each line of a log with these losses."""
    trend, problems = Trend(), []
    for step, loss in enumerate(losses, 1):
        trend = add_line(trend, alarm, step=step, phase=phase, loss=loss)
        problems.append(problem(trend, alarm))
    return problems


def test_a_lasting_rise_is_named_and_spikes_are_not() -> None:
    *before, last = follow([5, 4, 3, 2, 6, 7, 6])
    assert before == [None] * 6
    assert last is not None
    assert "the loss was 3.000 around step 4 and has been more than 1 above it for 3 lines" in last
    assert follow([5, 4, 3, 2, 99, 2, 99, 99, 2]) == [None] * 9


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_a_loss_that_stays_in_a_band_never_alarms(losses: list[float]) -> None:
    assert not any(follow([5 + loss / 20.0 for loss in losses]))


@given(st.lists(st.floats(0, 5), min_size=3, max_size=20), st.floats(1.5, 10))
def test_every_step_up_alarms_within_the_lines_set(losses: list[float], rise: float) -> None:
    top = max(losses) + rise
    assert follow([*losses, *[top] * ALARM.lines])[-1] is not None


def test_another_phase_has_other_losses() -> None:
    trend = Trend()
    for step, loss in enumerate([2.0] * 3 + [9.0] * 3):
        trend = add_line(trend, ALARM, step=step, phase=step // 3, loss=loss)
    assert problem(trend, ALARM) is None


def test_held_out_losses_count_after_two_measurements() -> None:
    trend = add_held_out(Trend(), ALARM, step=10, loss=2.0)
    trend = add_held_out(trend, ALARM, step=20, loss=3.5)
    assert problem(trend, ALARM) is None
    again = add_held_out(trend, ALARM, step=30, loss=3.5)
    assert "the held-out loss was 2.000 at step 10" in str(problem(again, ALARM))
    assert problem(add_held_out(trend, ALARM, step=30, loss=2.5), ALARM) is None


def test_the_checkpoint_before_the_rise_and_the_best_one_are_kept() -> None:
    trend = add_held_out(Trend(), ALARM, step=1, loss=2.0)
    for step, loss in enumerate([3.0, 3.0, 3.0, 3.0, 9.0, 9.0], 1):
        trend = add_save(add_line(trend, ALARM, step=step, phase=0, loss=loss), ALARM, step)
    assert list(kept_steps(trend)) == [4, 1]
    text = str(alarm_error("runs/r", trend, "the loss rose"))
    assert "bertmill rewind runs/r --step 1 or bertmill rewind runs/r --step 4" in text


def test_without_the_alarm_only_the_newest_checkpoints_are_kept() -> None:
    alarm, trend = Alarm(lines=3, rise=1.0, action="off"), Trend()
    for step, loss in enumerate([3.0, 3.0, 3.0, 9.0], 1):
        trend = add_save(add_line(trend, alarm, step=step, phase=0, loss=loss), alarm, step)
    assert list(kept_steps(trend)) == [4]


def test_checkpoints_at_multiples_are_kept(local_run: str) -> None:
    from trainer.checkpoint.store import CheckpointStore

    training = save_steps(local_run, [1])
    store = CheckpointStore(local_run, keep=1, keep_every=4)
    store.acquire_lease()
    for step in range(2, 11):
        training.step()
        store.save_async(step, training.state())
    store.close()
    assert saved_steps(local_run) == [10, 8, 4]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32,), validation_rows=(32,))


def trained(folder: Path, manifest: Path, **changes: Any) -> Outcome:
    config = train_config(folder, manifest, **changes)
    return train(TrainConfig.model_validate(config), single_rank())


def test_a_divergence_ends_the_run_and_a_rewind_leads_back(tmp_path: Path, manifest: Path) -> None:
    """Trains with far too high a learning rate and few kept checkpoints."""
    alarm = {"alarm": {"lines": 4, "action": "stop"}, "spike_sigma": None, "clip_norm": None}
    saves = {"every_steps": 4, "every_seconds": None, "keep": 1}
    steps = {"steps": 200, "learning_rate": 5e-3}
    common = {"stability": alarm, "checkpoints": saves, "evaluation": {"every_steps": 10, "rows": 32}}
    calm = trained(tmp_path, manifest, phases=[phase(32, 16, 128, **{**steps, "steps": 24})], **common)
    assert calm.step == 24
    raised = {
        "run": {"name": "run", "storage": str(tmp_path / "runs"), "accept_changes": ["phases"]},
        "phases": [phase(32, 16, 128, **{**steps, "learning_rate": 3.0})],
    }
    with pytest.raises(BertmillError, match=r"more than 0\.5 above it.*bertmill rewind .* --step (20|24)"):
        trained(tmp_path, manifest, **common, **raised)
    run = str(tmp_path / "runs" / "run")
    kept = saved_steps(run)
    assert min(kept) <= 24 < max(kept)
    assert main(["rewind", run, "--step", str(min(kept)), "--skip-data", "3"]) == 0
    back = {**raised, "phases": [phase(32, 16, 128, **{**steps, "steps": 60})]}
    outcome = trained(tmp_path, manifest, **common, **back)
    assert (outcome.resumed_from, outcome.status) == (min(kept), "finished")
    history = History(Path(run))
    newest = max(history.steps_of_attempts())
    rows = {e["step"]: e["row_ids"] for e in history.events("samples") if e["attempt"] == newest}
    (tmp_path / "whole").mkdir()
    trained(tmp_path / "whole", manifest, phases=[phase(32, 16, 128, **{**steps, "steps": 63})])
    whole = History(tmp_path / "whole" / "runs" / "run").samples()
    assert {step: sorted(ids) for step, ids in rows.items()} == {
        step: whole[step + 3] for step in range(min(kept), 60)
    }
    resumed = latest_verified(run)
    assert resumed is not None
    assert [skip.model_dump() for skip in resumed.run.position.skips] == [{"step": min(kept), "batches": 3}]
    resumed.close()


def test_by_default_a_rise_is_a_warning_and_the_run_continues(tmp_path: Path, manifest: Path) -> None:
    stability = {"alarm": {"lines": 2, "rise": 0.01}, "spike_sigma": None, "clip_norm": None}
    saves = {"every_steps": 2, "every_seconds": None}
    phases = [phase(32, 16, 128, steps=30, learning_rate=3.0)]
    outcome = trained(tmp_path, manifest, phases=phases, stability=stability, checkpoints=saves)
    assert (outcome.status, outcome.step) == ("finished", 30)
    warnings = [event["text"] for event in History(Path(outcome.run_uri)).events("warning")]
    assert any("above it for 2 lines of the log" in text for text in warnings)


def test_a_rewound_run_has_the_state_of_the_step(run: str) -> None:
    """The same on object storage, and repeatedly."""
    save_steps(run, [2, 4, 6])
    for _ in range(2):
        uri = rewind(run, 4)
        found = latest_verified(run)
        assert found is not None
        assert (found.uri, found.step) == (uri, 4)
        state = found.load()
        assert state.run.position.step == 4
        assert all(torch.isfinite(tensor).all() for tensor in state.model.values())
    with pytest.raises(
        CheckpointError, match="no checkpoint of step 5; the steps with a checkpoint are 2, 4, 6"
    ):
        rewind(run, 5)


def test_a_run_in_training_is_not_rewound(local_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(local_run, [2])
    owner = acquire_lease(local_run, Claimant(seconds=3))
    monkeypatch.setattr(rewinding, "Claimant", lambda name: Claimant(name, seconds=1))
    with pytest.raises(LeaseHeldError):
        rewind(local_run, 2)
    owner.release()
    rewind(local_run, 2)
    assert json.loads((Path(local_run) / "attempts" / "000003.json").read_text())["name"] == "rewind"
