"""Records of a log for tests: figures with some chosen fields, and events with any fields."""

from typing import Any

from pydantic import ConfigDict

from trainer.monitoring.records import Event, PretrainingMetrics, StepRecord

_STEP = {
    "loss": 0.5, "sequences": 4, "masked_tokens": 10, "pairs": 4, "lr": 1e-4, "grad_norm": 1.5, "phase": 0,
    "max_seq_length": 32, "global_batch": 4, "epoch": 0, "tokens": 100, "skipped_steps": 0,
    "consecutive_failed_saves": 0, "failed_log_writes": 0, "failed_log_uploads": 0,
    "tokens_per_second": 9.0, "step_seconds": 0.5, "data_wait_share": 0.01, "packing_efficiency": 0.98,
}  # fmt: skip


class FreeEvent(Event):
    """An event with any fields."""

    model_config = ConfigDict(extra="allow")


def step_record(step: int, **fields: Any) -> StepRecord:
    return StepRecord.model_validate({**_STEP, "step": step, **fields})


def figures(**fields: Any) -> PretrainingMetrics:
    return PretrainingMetrics.model_validate(
        {"loss": 0.25, "sequences": 1, "masked_tokens": 3, "pairs": 1, **fields}
    )
