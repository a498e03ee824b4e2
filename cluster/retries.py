"""Repeats a storage call after a fault that passes: 5xx, throttling, timeouts, lost connections."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from schemas.errors import StorageError

log = logging.getLogger(__name__)

BUDGET_SECONDS = 120.0
"""How long one call may be repeated. Longer than a restart of an object-store gateway, shorter than
the grace a preempted node gets, so that a dead store is reported by us and not by a SIGKILL."""

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0

Result = TypeVar("Result")


class HalfAnswerError(Exception):
    """An answer that says "fine" and is not what was asked for, as gateways and proxies give in trouble.

    Every kind of storage counts it as a fault that may pass.
    """


def call(action: Callable[[], Result], *, transient: Callable[[BaseException], bool], what: str) -> Result:
    """The result of ``action``, repeated while ``transient`` says that its error may pass.

    The delay doubles and is drawn between zero and its bound ("full jitter"), so that a thousand
    workers which met one fault together do not return together. Errors that are not transient come
    through unchanged. Raises StorageError with the last reason when BUDGET_SECONDS are used up.
    """
    attempts = Attempts(what)
    while True:
        try:
            return action()
        except Exception as error:
            if not transient(error):
                raise
            attempts.failed(error)


class Attempts:
    """Counts and spaces the attempts of one call; ``failed`` sleeps, or raises at the budget's end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0
        self._deadline = time.monotonic() + BUDGET_SECONDS

    def failed(self, error: BaseException) -> None:
        """Waits before the next attempt. Raises StorageError if the budget does not reach that far."""
        # Not drawn by key: a delay has no influence on what is written.
        longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**self._failures)
        delay = random.uniform(0, longest)  # noqa: S311 - no secret
        self._failures += 1
        reason = one_line(error)
        if time.monotonic() + delay > self._deadline:
            raise StorageError(
                f"{self._what}: gave up after {self._failures} attempts in {BUDGET_SECONDS:g} s: {reason}"
            ) from error
        log.warning("%s: attempt %d failed, again in %.1f s: %s", self._what, self._failures, delay, reason)
        time.sleep(delay)

    def succeeded(self) -> None:
        """Gives a long stream its whole budget again after each piece that arrived."""
        self._failures = 0
        self._deadline = time.monotonic() + BUDGET_SECONDS


def one_line(error: BaseException) -> str:
    """The error's text on one line, with its type where the text alone says little."""
    text = " ".join(str(error).split())
    return text if len(text) > 20 else f"{type(error).__name__}: {text}".rstrip(": ")
