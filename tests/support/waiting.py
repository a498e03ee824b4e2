"""Waits for events. The timeout only ends a test that hangs, and is long enough for a busy machine."""

import subprocess
import time
from collections.abc import Callable

# Below the limit of pytest-timeout in pyproject.toml, so that a failed wait reports its event.
HANG_SECONDS = 1800.0


def wait_until(
    condition: Callable[[], object],
    process: "subprocess.Popen[str] | None" = None,
    what: str = "the condition",
    every: float = 0.02,
) -> None:
    """Returns once ``condition``, checked every few hundredths of a second, holds.

    A condition that costs CPU time should be checked less often. Fails with the output of ``process`` when
    that ends before.
    """
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        if process is not None and process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        time.sleep(every)
