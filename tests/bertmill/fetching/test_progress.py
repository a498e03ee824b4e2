"""The line of progress: amounts, rate and ETA."""

import re

import pytest

from bertmill.fetching.progress import FetchProgress


def test_the_rate_counts_what_this_run_received(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("bertmill.fetching.progress.time.monotonic", lambda: now)
    progress = FetchProgress()
    progress.expect("a", 1_000_000_000)
    progress.expect("b", 500_000_000)
    progress.resume(300_000_000)
    progress.advance(200_000_000)
    progress.file_done()
    now = 10.0
    assert progress.is_due(10)
    assert progress.line() == "1 of 2 files, 0.50 of 1.50 GB, 20.0 MB/s, ETA 0:00:50"
    assert not progress.is_due(10)
    progress.expect("unknown", 0)
    assert re.fullmatch("1 of 3 files, 0.50 GB, 20.0 MB/s", progress.line())
