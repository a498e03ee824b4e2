"""Follows the loss of a run: raises the alarm when it stays high, and tells good checkpoints from bad ones.

A line of the log has the mean loss of its steps, the same on every rank. The lowest mean of some lines in a
row is the level that the run has reached. A rise lasts when the same number of lines in a row are all clearly
above that level. A single spike of any height does not count. Each phase starts over, because other sequence
lengths have other losses. A checkpoint is good if the loss was not above that level when it was saved.
"""

from collections.abc import Iterator

from schemas.errors import BertmillError
from trainer.checkpoint.manifest import Trend
from trainer.config import Alarm

_WORSE_MEASUREMENTS = 2
_STILL_GOOD = 0.5
"""A checkpoint is good if the loss is above its level by less than this share of the alarm's rise."""


def add_line(trend: Trend, alarm: Alarm, *, step: int, phase: int, loss: float) -> Trend:
    """The trend after a line of the log."""
    if phase != trend.phase:
        trend = Trend(phase=phase, good_step=trend.good_step)
    recent = [*trend.recent, loss][-alarm.lines :]
    changes: dict[str, object] = {"recent": recent}
    mean = sum(recent) / len(recent)
    if len(recent) == alarm.lines and (trend.lowest is None or mean < trend.lowest):
        changes |= {"lowest": mean, "lowest_step": step}
    return trend.model_copy(update=changes)


def add_held_out(trend: Trend, alarm: Alarm, *, step: int, loss: float) -> Trend:
    """The trend after a measurement of held-out sequences."""
    if trend.best_held_out is None or loss < trend.best_held_out:
        return trend.model_copy(update={"best_held_out": loss, "best_step": step, "worse": 0})
    worse = trend.worse + 1 if loss > trend.best_held_out + alarm.rise else 0
    return trend.model_copy(update={"worse": worse})


def add_save(trend: Trend, alarm: Alarm, step: int) -> Trend:
    """The trend after a checkpoint of ``step``."""
    level, last = trend.lowest, trend.recent[-1] if trend.recent else None
    rising = level is not None and last is not None and last > level + _STILL_GOOD * alarm.rise
    bad = alarm.action != "off" and (rising or trend.worse > 0)
    return trend if bad else trend.model_copy(update={"good_step": step})


def problem(trend: Trend, alarm: Alarm) -> str | None:
    """What is wrong if the loss stays high, otherwise None."""
    if trend.worse >= _WORSE_MEASUREMENTS:
        return (
            f"the held-out loss was {trend.best_held_out:.3f} at step {trend.best_step} and has been more"
            f" than {alarm.rise:g} above it in {trend.worse} measurements"
        )
    least = min(trend.recent, default=0.0)
    if trend.lowest is not None and len(trend.recent) == alarm.lines and least > trend.lowest + alarm.rise:
        return (
            f"the loss was {trend.lowest:.3f} around step {trend.lowest_step} and has been more than"
            f" {alarm.rise:g} above it for {alarm.lines} lines of the log, the last one with"
            f" {trend.recent[-1]:.3f}"
        )
    return None


def alarm_error(run_uri: str, trend: Trend, text: str) -> BertmillError:
    """The error that ends a run, or the warning, with the way back."""
    steps = sorted(set(kept_steps(trend)))
    back = " or ".join(f"bertmill rewind {run_uri} --step {step}" for step in steps)
    way = f" The checkpoints before the rise are kept: {back}, then lower the learning rate." if steps else ""
    return BertmillError(
        f"{run_uri}: {text}.{way} stability.alarm.action sets whether such a rise stops the run"
    )


def kept_steps(trend: Trend) -> Iterator[int]:
    """Steps of the checkpoints that must not be deleted for any number of newer ones."""
    for step in (trend.good_step, trend.best_step):
        if step is not None:
            yield step
