"""Ownership of a run: a live owner is not replaced, a dead or silent one is, and clocks do not matter."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import storage
from cluster.jobs import lease
from cluster.jobs.lease import (
    Claimant,
    FencedError,
    LeaseHeldError,
    RunLease,
    acquire_lease,
    await_free,
    newest_attempt,
)
from cluster.jobs.processes import HostProcess
from tests.support.ray_cluster import ROOT
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import wait_until
from tests.trainer.states import TinyTraining
from trainer.checkpoint.reading import open_checkpoint
from trainer.checkpoint.store import CheckpointStore


def elsewhere(run: str, number: int, **changes: object) -> None:
    """Makes an attempt look like one of another host, whose processes this host cannot see."""
    uri = storage.join(run, "attempts", f"{number:06d}.json")
    details = json.loads(storage.read_bytes(uri))
    storage.put_bytes(uri, json.dumps({**details, "process_space": "another", **changes}).encode())


def silence(owner: RunLease) -> None:
    """Ends a heartbeat without a last record, like a kill."""
    owner._ended.set()
    if owner._heartbeat is not None:
        owner._heartbeat.join()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """The clock of those who watch an owner, for tests without a live one."""
    clock = VirtualTime()
    monkeypatch.setattr(lease, "time", clock)
    return clock


def test_a_live_owner_is_named_and_nothing_is_claimed(run: str) -> None:
    owner = acquire_lease(run, Claimant(seconds=3))
    with pytest.raises(LeaseHeldError, match=r"attempt 1 \(host .*, process \d+\) is training this run"):
        acquire_lease(run, Claimant(seconds=1))
    assert newest_attempt(run) == 1
    owner.check()
    owner.release()
    after = acquire_lease(run, Claimant(seconds=600))
    assert after.number == 2
    after.release()


def test_a_silent_owner_elsewhere_is_replaced_after_the_time_set(local_run: str, clock: VirtualTime) -> None:
    owner = acquire_lease(local_run, Claimant(seconds=60))
    elsewhere(local_run, 1)
    silence(owner)
    after = acquire_lease(local_run, Claimant(seconds=60))
    assert 60 <= clock.now < 120
    assert after.number == 2
    with pytest.raises(FencedError, match="attempt 1 has been replaced by attempt 2"):
        owner.check()
    after.release()


@pytest.mark.parametrize("skew", [-1e9, 1e9])
def test_the_clock_of_a_live_owner_elsewhere_does_not_matter(local_run: str, skew: float) -> None:
    owner = acquire_lease(local_run, Claimant(seconds=3))
    elsewhere(local_run, 1, time=time.time() + skew)
    with pytest.raises(LeaseHeldError):
        await_free(local_run, Claimant(seconds=1))
    owner.release()


@pytest.mark.parametrize("skew", [-1e9, 1e9])
def test_the_clock_of_a_silent_owner_elsewhere_does_not_matter(
    local_run: str, clock: VirtualTime, skew: float
) -> None:
    silence(acquire_lease(local_run, Claimant(seconds=60)))
    elsewhere(local_run, 1, time=time.time() + skew)
    assert await_free(local_run, Claimant(seconds=60)) == 1
    assert 60 <= clock.now < 120


def test_an_owner_between_its_claim_and_its_first_heartbeat_is_waited_for(
    local_run: str, clock: VirtualTime
) -> None:
    """Its host may have died at this point, or be about to write the first heartbeat."""
    silence(acquire_lease(local_run, Claimant(seconds=60)))
    elsewhere(local_run, 1)
    storage.delete(storage.join(local_run, "attempts", "000001.beat"))
    assert await_free(local_run, Claimant(seconds=60)) == 1
    assert 60 <= clock.now < 120


def test_a_dead_process_of_this_host_is_replaced_immediately(run: str) -> None:
    code = (
        "import os, sys; from cluster.jobs.lease import *\n"
        "acquire_lease(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, run], cwd=ROOT, check=False, timeout=60)
    before = time.monotonic()
    after = acquire_lease(run, Claimant(seconds=600))
    assert after.number == 2
    assert time.monotonic() - before < 60
    after.release()


def test_an_owner_that_dies_while_it_is_watched_is_noticed_before_the_time_set(
    local_run: str, clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same happens after the kill of a driver, whose workers take a moment to end."""
    owner = acquire_lease(local_run, Claimant(seconds=60))
    answers = iter([False, True])
    monkeypatch.setattr(lease.Owner, "is_dead", lambda _: next(answers))
    assert await_free(local_run, Claimant(seconds=60)) == 1
    assert clock.now < 60
    owner.release()


def test_a_process_number_that_was_given_away_is_noticed() -> None:
    here = HostProcess.current()
    assert here.process_start is not None
    assert not here.is_dead()
    assert replace(here, process_start=here.process_start - 1).is_dead()
    assert not replace(here, process_start=1, process_space="another").is_dead()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"attempt": 1}', b'{"attempt": "x", "process": null}'])
def test_an_owner_whose_file_is_damaged_is_replaced_when_it_is_silent(
    local_run: str, clock: VirtualTime, content: bytes
) -> None:
    silence(acquire_lease(local_run, Claimant(seconds=60)))
    storage.put_bytes(storage.join(local_run, "attempts", "000001.json"), content)
    after = acquire_lease(local_run, Claimant(seconds=60))
    assert after.number == 2
    assert clock.now >= 60
    after.release()


def test_take_over_replaces_a_live_owner_which_notices_by_itself(local_run: str) -> None:
    owner = acquire_lease(local_run, Claimant(seconds=1))
    after = acquire_lease(local_run, Claimant(take_over=True))
    wait_until(lambda: owner.displaced is not None)
    assert "replaced by attempt 2" in str(owner.displaced)
    owner.release()
    after.check()
    after.release()


def test_a_restart_of_the_same_job_replaces_its_own_attempt_but_no_other(local_run: str) -> None:
    first = acquire_lease(local_run, Claimant(job="a", seconds=600))
    again = acquire_lease(local_run, Claimant(job="a", seconds=600))
    assert again.number == 2
    other = acquire_lease(local_run, Claimant(job="b", take_over=True, seconds=600))
    # Two jobs that were both started with --take-over must not replace each other forever.
    with pytest.raises(FencedError, match="attempt 2 of this job has been replaced by attempt 3"):
        acquire_lease(local_run, Claimant(job="a", take_over=True, seconds=600))
    for owner in (first, again, other):
        owner.release()


def test_what_a_launcher_has_watched_is_not_watched_again(local_run: str) -> None:
    silence(acquire_lease(local_run, Claimant(seconds=600)))
    elsewhere(local_run, 1)
    after = acquire_lease(local_run, Claimant(seconds=600, free_attempt=1))
    assert after.number == 2
    after.release()


def test_a_displaced_state_is_complete_and_no_resume_finds_it(run: str) -> None:
    training = TinyTraining()
    store = CheckpointStore(run)
    store.acquire_lease()
    training.step(3)
    with open_checkpoint(store.set_aside(3, training.state())) as checkpoint:
        assert checkpoint.load().run.position.step == 3
    assert store.latest_verified() is None
    store.close()
    assert "displaced" in {Path(info.uri).parts[-3] for info in storage.list_files(run)}
