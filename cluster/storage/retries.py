"""Retries storage calls after transient faults: 5xx, throttling, timeouts, lost connections."""

import logging
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from schemas.errors import StorageError
from schemas.redaction import redact

logger = logging.getLogger(__name__)

BUDGET_SECONDS = 120.0
"""How long to retry one call. Longer than a restart of an object-store gateway, and shorter than the grace
period of a preempted node, so that a dead store causes our error and not a SIGKILL."""

LONGEST_RETRY_AFTER_SECONDS = 600.0
"""Maximum total wait of one call at the server's request (Retry-After), in addition to the budget."""

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0

# The beginning of urllib3's texts, which repeats the URI in ours.
_CONNECTION = re.compile(r"^HTTPS?Connection(?:Pool)?\([^)]*\): ")

Result = TypeVar("Result")


class HalfAnswerError(Exception):
    """A successful response with wrong content, as overloaded gateways and proxies send.

    Every backend treats it as transient.
    """


def _no_retry_after(_error: BaseException) -> float:
    return 0.0


def call(
    action: Callable[[], Result],
    *,
    transient: Callable[[BaseException], bool],
    what: str,
    retry_after: Callable[[BaseException], float] = _no_retry_after,
) -> Result:
    """The result of ``action``, retried while ``transient(error)`` is true.

    The delay is at least ``retry_after(error)`` seconds, which the server requests. An additional random
    delay between zero and a bound that doubles ("full jitter") keeps a thousand workers from retrying
    together. Other errors pass through unchanged. Raises StorageError with the last reason when
    BUDGET_SECONDS are used up.
    """
    attempts = Attempts(what)
    while True:
        try:
            return action()
        except Exception as error:
            if not transient(error):
                raise
            attempts.failed(error, retry_after(error))


class Attempts:
    """Counts the attempts of one call. ``failed`` sleeps before the next one, or raises at the deadline."""

    def __init__(self, what: str) -> None:
        self._what = redact(what)
        self._failures = 0
        self._requested_wait = 0.0
        self._deadline = time.monotonic() + BUDGET_SECONDS

    def failed(self, error: BaseException, retry_after: float = 0.0) -> None:
        """Waits before the next attempt, at least the seconds that the server requests.

        Raises StorageError if the next attempt would start after the deadline, which moves by the seconds
        requested, or when the server requests more than LONGEST_RETRY_AFTER_SECONDS.
        """
        # Not keyed like other draws, because a delay does not affect output.
        longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**self._failures)
        delay = retry_after + random.uniform(0, longest)  # noqa: S311 - not a secret
        self._failures += 1
        self._requested_wait += retry_after
        self._deadline += retry_after
        reason = one_line(error)
        if self._requested_wait > LONGEST_RETRY_AFTER_SECONDS:
            raise StorageError(
                f"{self._what}: gave up, because the server requests a wait of {retry_after:.0f} s: {reason}"
            ) from error
        if time.monotonic() + delay > self._deadline:
            raise StorageError(
                f"{self._what}: gave up after {self._failures} attempts in {BUDGET_SECONDS:g} s: {reason}"
            ) from error
        logger.warning(
            "%s: attempt %d failed, retrying in %.1f s: %s", self._what, self._failures, delay, reason
        )
        time.sleep(delay)

    def succeeded(self) -> None:
        """Restarts the budget of a long stream after each received piece."""
        self._failures = 0
        self._requested_wait = 0.0
        self._deadline = time.monotonic() + BUDGET_SECONDS


def one_line(error: BaseException) -> str:
    """The reason of an error on one line without secrets in URLs. Adds the type if the text is too short.

    >>> one_line(TimeoutError())
    'TimeoutError'
    """
    reason = _innermost(error)
    text = redact(_CONNECTION.sub("", " ".join(str(reason).split())))
    return text if len(text) > 20 else f"{type(reason).__name__}: {text}".rstrip(": ")


def _innermost(error: BaseException) -> BaseException:
    """The original error, which requests and urllib3 wrap up to three times in ever longer texts."""
    for inner in (getattr(error, "reason", None), *error.args[:1]):
        if isinstance(inner, BaseException):
            return _innermost(inner)
    return error
