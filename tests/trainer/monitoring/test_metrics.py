"""Figures made of sums."""

from typing import Any

import pytest
import torch

from trainer.model.objectives import STATISTICS
from trainer.monitoring.metrics import metrics_by_language, total_metrics


def sums(**values: Any) -> list[float]:
    return [float(values.get(name, 0)) for name in STATISTICS]


def test_figures_are_divided_by_their_own_counts() -> None:
    german = {"mlm_loss": 8, "mlm_count": 4, "mlm_correct": 1, "sequences": 3, "nsp_loss": 1}
    german |= {"nsp_count": 2, "nsp_correct": 2, "nsp_label_1": 1, "nsp_label_1_correct": 1}
    english = {"mlm_loss": 2, "mlm_count": 1, "mlm_correct": 1, "sequences": 2}
    english |= {"nsp_loss": 2, "nsp_count": 2}
    table = torch.tensor([sums(**german), sums(), sums(**english)])
    found, by_language = total_metrics(table), metrics_by_language(table, ["de", "el", "en"])
    assert found.mlm_loss == 2.0
    assert found.mlm_accuracy == 0.4
    assert found.nsp_loss == 0.75
    assert found.loss == 2.75
    assert found.nsp_accuracy == 0.5
    assert found.nsp_accuracy_label_1 == 1.0
    assert found.nsp_accuracy_label_0 == pytest.approx(1 / 3)
    assert found.nsp_label_1_share == 0.25
    assert set(by_language) == {"de", "en"}
    assert by_language["en"].mlm_accuracy == 1.0


def test_nothing_to_predict_gives_no_figures_instead_of_nan() -> None:
    nothing = torch.zeros(1, len(STATISTICS))
    counts = {"loss": 0.0, "sequences": 0, "masked_tokens": 0, "pairs": 0}
    assert total_metrics(nothing).model_dump(exclude_none=True) == counts
    assert metrics_by_language(nothing, ["de"]) == {}
