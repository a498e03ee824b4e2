"""Tests that SIGTERM and Ctrl-C both set a flag, or raise an exception if there is nothing to save."""

import signal
import sys
import threading
from contextlib import ExitStack

import pytest

from cluster.jobs import shutdown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_flag_however_often_it_comes(number: signal.Signals) -> None:
    # A shell starts background jobs with SIGINT ignored.
    before = signal.getsignal(signal.SIGINT)
    with shutdown.handled():
        assert not shutdown.requested()
        for _ in range(3):
            signal.raise_signal(number)
        assert shutdown.requested()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_where_nothing_can_be_lost_it_interrupts_once(number: signal.Signals) -> None:
    with shutdown.handled():
        with pytest.raises(shutdown.Interrupted), shutdown.interruptible(), ExitStack() as cleanup:
            cleanup.callback(signal.raise_signal, number)  # must not interrupt the cleanup
        cleaned_up = shutdown.requested()
        assert cleaned_up
        signal.raise_signal(number)
        # A signal between two interruptible parts takes effect in the second one.
        with pytest.raises(shutdown.Interrupted), shutdown.interruptible():
            pytest.fail("entered")


def test_other_threads_are_left_alone() -> None:
    def work() -> None:
        with shutdown.handled(), shutdown.interruptible():
            done.set()

    done = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done.is_set()


def test_handlers_that_a_library_replaces_are_put_back() -> None:
    """For example by ray.init, whose own handler of SIGTERM calls sys.exit."""
    with shutdown.handled():
        with shutdown.preserved():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)
        assert shutdown.requested()
    with shutdown.handled(), pytest.raises(shutdown.Interrupted), shutdown.preserved():
        sys.exit(signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with shutdown.preserved():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)
