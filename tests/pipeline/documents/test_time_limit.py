"""Tests that the time limit interrupts any thread and restores all state."""

import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.documents.time_limit import TimeLimit, TimeLimitError


def _spin() -> None:
    while True:
        pass


def _in_thread(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _interrupted(work: Callable[[], object]) -> bool:
    with TimeLimit(0.1) as limit:
        try:
            limit.call(work)
        except TimeLimitError:
            # The next call gets a new limit.
            assert limit.call(lambda: 7) == 7
            return True
    return False


def test_endless_work_is_interrupted_in_the_main_thread_and_in_others() -> None:
    assert _interrupted(_spin)
    assert _in_thread(lambda: _interrupted(_spin))


def test_a_regular_expression_that_explodes_is_interrupted() -> None:
    assert _interrupted(lambda: re.match(r"(a+)+$", "a" * 60 + "b"))


def test_results_and_errors_pass_through() -> None:
    def work() -> None:
        with TimeLimit(5) as limit:
            assert limit.call(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                limit.call(divmod, 1, 0)

    work()
    _in_thread(work)


def test_waiting_is_not_counted() -> None:
    assert not _interrupted(lambda: time.sleep(0.3))
    assert not _in_thread(lambda: _interrupted(lambda: time.sleep(0.3)))


def test_the_handler_and_the_threads_are_as_before() -> None:
    before, threads = signal.getsignal(signal.SIGVTALRM), threading.active_count()
    _interrupted(_spin)
    _in_thread(lambda: _interrupted(_spin))
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert threading.active_count() == threads
