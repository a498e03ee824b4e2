"""Metrics of training: loss, accuracy and perplexity from sums over sequences, and tokens per second."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.model.objectives import STATISTICS
from trainer.monitoring.records import PretrainingMetrics


def total_metrics(statistics: Tensor) -> PretrainingMetrics:
    """Metrics of all languages together, from sums [languages, len(STATISTICS)]."""
    return _metrics(statistics.double().cpu().sum(0))


def metrics_by_language(statistics: Tensor, languages: Sequence[str]) -> dict[str, PretrainingMetrics]:
    """Metrics of each language that has a sequence, from sums [languages, len(STATISTICS)]."""
    sums = statistics.double().cpu()
    return {
        language: _metrics(sums[number])
        for number, language in enumerate(languages)
        if sums[number, STATISTICS.index("sequences")] > 0
    }


def _metrics(row: Tensor) -> PretrainingMetrics:
    sums: dict[str, float] = dict(zip(STATISTICS, row.tolist(), strict=True))
    label_0 = sums["nsp_count"] - sums["nsp_label_1"]
    label_0_correct = sums["nsp_correct"] - sums["nsp_label_1_correct"]
    mlm_loss = _mean(sums["mlm_loss"], sums["mlm_count"])
    nsp_loss = _mean(sums["nsp_loss"], sums["nsp_count"])
    return PretrainingMetrics(
        loss=math.fsum(loss for loss in (mlm_loss, nsp_loss) if loss is not None),
        sequences=round(sums["sequences"]),
        masked_tokens=round(sums["mlm_count"]),
        mlm_loss=mlm_loss,
        mlm_accuracy=_mean(sums["mlm_correct"], sums["mlm_count"]),
        perplexity=None if mlm_loss is None else math.exp(min(mlm_loss, 700.0)),
        pairs=round(sums["nsp_count"]),
        nsp_loss=nsp_loss,
        nsp_accuracy=_mean(sums["nsp_correct"], sums["nsp_count"]),
        nsp_accuracy_label_0=_mean(label_0_correct, label_0),
        nsp_accuracy_label_1=_mean(sums["nsp_label_1_correct"], sums["nsp_label_1"]),
        nsp_label_1_share=_mean(sums["nsp_label_1"], sums["nsp_count"]),
        objective_loss=_mean(sums["objective_loss"], sums["objective_count"]),
    )


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


@dataclass(frozen=True)
class Throughput:
    """The speed of all ranks together."""

    tokens_per_second: float
    step_seconds: float
    """Mean seconds of a step."""
    data_wait_share: float
    """Share of the time that this rank waited for data."""
    packing_efficiency: float
    """Share of the token slots of the micro-batches that held real tokens."""


class Meter:
    """Sums since the last line of the log."""

    def __init__(self, languages: int, device: torch.device) -> None:
        self._zero = torch.zeros(languages, len(STATISTICS), device=device)
        self.reset()

    def reset(self) -> None:
        """Sets all sums to 0 and restarts the clock."""
        self.statistics = self._zero.clone()
        """Of this rank, [languages, len(STATISTICS)]."""
        self.tokens = 0
        """Real tokens, over all ranks."""
        self.squared_lengths = 0
        """Sum of the squared lengths of the sequences, over all ranks."""
        self.token_slots = 0
        """Token slots of the micro-batches, over all ranks."""
        self.steps = 0
        self.waited = 0.0
        """Seconds spent waiting for data."""
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last reset, always above 0."""
        return max(time.monotonic() - self.started, 1e-9)

    def throughput(self) -> Throughput:
        """The speed since the last reset."""
        seconds = self.seconds
        return Throughput(
            tokens_per_second=round(self.tokens / seconds, 1),
            step_seconds=round(seconds / max(self.steps, 1), 6),
            data_wait_share=round(self.waited / seconds, 6),
            packing_efficiency=round(self.tokens / max(self.token_slots, 1), 6),
        )
