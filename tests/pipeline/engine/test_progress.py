"""Tests that watchers receive planned, finished and failed work, including work of earlier runs."""

import pytest

from pipeline.engine.progress import Progress, watched_by
from pipeline.engine.ray_data import retry_on_node_loss
from schemas.errors import InputError


class Recorder:
    """Records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def planned(self, stage: str, units: int) -> None:
        self.heard.append(("planned", stage, units))

    def done(self, stage: str, units: int, rate: float) -> None:
        self.heard.append(("done", stage, units))
        assert rate >= 0

    def failed(self, stage: str) -> None:
        self.heard.append(("failed", stage))


def test_watcher_hears_of_a_resumed_stage() -> None:
    recorder = Recorder()
    with watched_by(recorder):
        progress = Progress("extract", total=2, skipped=5, interval_seconds=0)
        progress.advance(1e6)
        progress.advance(1e6)
    Progress("dedup", total=1).advance(1.0)
    assert recorder.heard == [
        ("planned", "extract", 7), ("done", "extract", 5), ("done", "extract", 6), ("done", "extract", 7),
    ]  # fmt: skip


def test_watcher_hears_of_a_failure() -> None:
    recorder = Recorder()

    def stage() -> None:
        raise InputError("dump.xml.bz2: truncated")

    with watched_by(recorder), pytest.raises(InputError):
        retry_on_node_loss("extract", stage)
    assert recorder.heard == [("failed", "extract")]
