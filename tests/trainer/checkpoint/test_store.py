"""Checkpoints: the protocol, its refusals and the search, on a local disk and on a real S3."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cluster import storage
from cluster.jobs import lease
from schemas.errors import CheckpointError, StorageError
from tests.support.s3_server import READER_KEY, READER_SECRET
from tests.trainer.states import (
    TinyTraining,
    assert_equal,
    folder_of,
    save_steps,
    saved_steps,
    scratch_folders,
)
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.manifest import MANIFEST, MODEL, OPTIMIZER
from trainer.checkpoint.reading import latest_verified, open_checkpoint
from trainer.checkpoint.store import CheckpointStore


def test_a_state_comes_back_to_the_bit(run: str, temporary: Path) -> None:
    training = save_steps(run, [3])
    found = latest_verified(run)
    assert found is not None
    assert (found.step, found.run.position.tokens) == (3, 12)
    loaded = found.load()
    assert_equal(loaded, training.state())
    assert scratch_folders(temporary) == []
    resumed = TinyTraining(seed=9)
    resumed.restore(loaded)
    resumed.step(2)
    training.step(2)
    assert_equal(resumed.state(), training.state())


def test_other_ranks_open_what_rank_0_chose(run: str) -> None:
    training = save_steps(run, [2])
    chosen = latest_verified(run)
    assert chosen is not None
    assert_equal(open_checkpoint(chosen.uri).load(), training.state())
    chosen.close()
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json: missing"):
        open_checkpoint(storage.join(run, "checkpoints", "step-00000009.000001-x"))


def test_a_new_run_has_none(run: str) -> None:
    assert latest_verified(run) is None


def test_deleted_older_ones_do_no_harm(run: str) -> None:
    """trainer-040, trainer-041: without a pointer, the newest complete checkpoint is found by listing."""
    save_steps(run, [2, 4, 6])
    storage.delete_prefix(folder_of(run, 2))
    first = latest_verified(run)
    storage.delete_prefix(folder_of(run, 6))
    second = latest_verified(run)
    assert first is not None
    assert second is not None
    assert (first.step, second.step) == (6, 4)


def test_retention_keeps_the_newest(run: str) -> None:
    save_steps(run, [1, 2, 3, 4, 5], keep=2)
    assert saved_steps(run) == [5, 4]
    assert len(list_folders(run)) == 2


def test_retention_keeps_the_last_verified_one(run: str) -> None:
    """A newest checkpoint that is damaged later is no reason to delete older ones. A new commit is."""
    save_steps(run, [2], keep=1)
    store = CheckpointStore(run, keep=1)
    store.acquire_lease()
    training = TinyTraining()
    training.step(4)
    store.save_async(4, training.state())
    store.close()
    assert saved_steps(run) == [4]
    found = latest_verified(run)
    assert found is not None
    found.close()


@pytest.mark.s3
def test_a_failed_upload_deletes_nothing(s3_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """trainer-039, 047: with keep 1, the old checkpoint stays until the new one is committed."""
    training = TinyTraining()
    store = CheckpointStore(s3_folder, keep=1, max_failed=3)
    store.acquire_lease()
    store.save_async(1, training.state())
    store.wait()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
        store.save_async(2, training.state())
        with pytest.raises(CheckpointError, match=r"step-00000002.*access denied"):
            store.wait()
        store.save_async(3, training.state())
        with pytest.raises(CheckpointError, match="access denied"):
            store.wait()
        assert store.consecutive_failures == 2
        store.save_async(4, training.state())
        with pytest.raises(CheckpointError, match="3 saves in a row failed"):
            store.save_async(5, training.state())
        assert saved_steps(s3_folder) == [1]
    store.save_async(6, training.state())
    store.wait()
    assert store.consecutive_failures == 0
    store.close()
    assert saved_steps(s3_folder) == [6]
    assert len(list_folders(s3_folder)) == 1


def test_the_older_of_two_writers_refuses_to_commit(run: str) -> None:
    """trainer-051."""
    training = TinyTraining()
    older, newer = CheckpointStore(run), CheckpointStore(run, lease.Claimant(take_over=True))
    older.acquire_lease()
    older.save_async(1, training.state())
    older.wait()
    newer.acquire_lease()
    older.save_async(2, training.state())
    with pytest.raises(lease.FencedError, match="attempt 1 has been replaced by attempt 2"):
        older.wait()
    with pytest.raises(lease.FencedError):
        older.save_async(3, training.state())
    training.step()
    newer.save_async(2, training.state())
    newer.close()
    assert saved_steps(run) == [2, 1]
    found = latest_verified(run)
    assert found is not None
    assert found.manifest.attempt == 2
    assert_equal(found.load(), training.state())


def test_a_lease_taken_between_check_and_commit_takes_the_commit_back(local_run: str) -> None:
    older = CheckpointStore(local_run)
    older.acquire_lease()
    newer_attempt_at_put = threading.Event()

    class LateLease(lease.RunLease):
        checks = 0

        def check(self) -> None:
            super().check()
            LateLease.checks += 1
            if LateLease.checks == 2:  # the last check before the manifest is put
                lease.acquire_lease(local_run, lease.Claimant(take_over=True))
                newer_attempt_at_put.set()

    older._lease = LateLease(local_run, 1, "000001-late")
    older.save_async(1, TinyTraining().state())
    with pytest.raises(lease.FencedError):
        older.wait()
    assert newer_attempt_at_put.is_set()
    assert saved_steps(local_run) == []


def test_of_racing_starts_one_owns_the_run(run: str) -> None:
    start = threading.Barrier(4)
    owners: list[lease.RunLease] = []
    refused: list[CheckpointError] = []

    def race() -> None:
        start.wait()
        try:
            owners.append(lease.acquire_lease(run, lease.Claimant(seconds=2)))
        except lease.LeaseHeldError as error:
            refused.append(error)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [owner.number for owner in owners] == [1]
    assert len(refused) == 3
    assert all("add --take-over" in str(error) for error in refused)
    owners[0].release()


def test_racing_take_overs_get_different_numbers(run: str) -> None:
    start = threading.Barrier(8)
    owners: list[lease.RunLease] = []

    def race() -> None:
        start.wait()
        owners.append(lease.acquire_lease(run, lease.Claimant(take_over=True)))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(owner.number for owner in owners) == list(range(1, 9))
    for owner in owners:
        owner.release()


def test_old_leases_do_not_pile_up(local_run: str) -> None:
    for _ in range(40):
        lease.acquire_lease(local_run).release()
    named = lease.acquire_lease(local_run, lease.Claimant("Ray Attempt 7!"))
    named.release()
    assert named.suffix == "000041-ray-attempt-7"
    assert len(storage.list_files(storage.join(local_run, "attempts"))) <= 36


def test_the_newest_attempt_leads_even_with_fewer_steps(run: str) -> None:
    """An attempt that fell back to an earlier step makes later steps of previous attempts a dead branch."""
    save_steps(run, [2, 8])
    save_steps(run, [4])
    found = latest_verified(run)
    assert found is not None
    assert (found.step, found.manifest.attempt) == (4, 2)
    found.close()


def test_saving_needs_the_lease(local_run: str) -> None:
    store = CheckpointStore(local_run)
    with pytest.raises(CheckpointError, match="acquire the lease of the run"):
        store.save_async(1, TinyTraining().state())
    store.close()


def test_leftovers_of_a_dead_attempt_do_not_mix_and_go(run: str) -> None:
    """trainer-042: the dead attempt had uploaded half of the same step."""
    save_steps(run, [2])
    dead = lease.acquire_lease(run)
    dead.release()
    leftover = storage.join(run, "checkpoints", f"step-00000004.{dead.suffix}")
    storage.put_bytes(storage.join(leftover, MODEL), b"half of a model")
    storage.put_bytes(storage.join(leftover, "extra.bin"), b"of another world size")
    training = save_steps(run, [4])
    assert saved_steps(run) == [4, 2]
    assert storage.list_files(leftover) == []
    found = latest_verified(run)
    assert found is not None
    assert sorted(found.manifest.files) == [MODEL, OPTIMIZER]
    assert {info.uri.rsplit("/", 1)[1] for info in storage.list_files(found.uri)} == {
        MODEL,
        OPTIMIZER,
        MANIFEST,
    }
    assert_equal(found.load(), training.state())


def test_the_copy_is_of_the_moment_of_the_call(run: str, tmp_path: Path) -> None:
    """trainer-044: training continues during the save. The bytes are those of a synchronous save."""
    training = TinyTraining(width=300)
    store = CheckpointStore(run, keep=9)
    store.acquire_lease()
    for step in (2, 4, 6):
        training.step(step - training.step_number)
        store.save_async(step, training.state())
        training.step()
    store.close()
    other = str(tmp_path / "synchronous")
    reference = CheckpointStore(other, keep=9)
    reference.acquire_lease()
    again = TinyTraining(width=300)
    for step in (2, 4, 6):
        again.step(step - again.step_number)
        reference.save_async(step, again.state())
        reference.wait()
        again.step()
    reference.close()
    for step in (2, 4, 6):
        for name in (MODEL, OPTIMIZER):
            left, right = (storage.join(folder_of(where, step), name) for where in (run, other))
            assert storage.read_bytes(left) == storage.read_bytes(right)


def test_a_step_is_saved_once(run: str) -> None:
    store = CheckpointStore(run)
    store.acquire_lease()
    training = TinyTraining()
    store.save_async(1, training.state())
    store.save_async(1, training.state())
    store.close()
    assert saved_steps(run) == [1]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_fifty_saves_leave_nothing_behind(run: str, temporary: Path) -> None:
    """trainer-045."""
    training = TinyTraining(width=512)
    store = CheckpointStore(run, keep=2)
    store.acquire_lease()
    resident = []
    for step in range(1, 51):
        store.save_async(step, training.state())
        if step in (10, 50):
            store.wait()
            resident.append(resident_bytes())
    store.close()
    assert scratch_folders(temporary) == []
    assert saved_steps(run) == [50, 49]
    assert len(storage.list_files(storage.join(run, "checkpoints"))) == 6
    assert resident[1] - resident[0] < 40 << 20  # 40 leaked copies would be 126 MB


def test_leaving_right_after_a_save_awaits_it(local_run: str) -> None:
    """trainer-043: the last save is awaited although nobody called wait."""
    script = (
        "import sys\n"
        "from tests.trainer.states import TinyTraining\n"
        "from trainer.checkpoint.store import CheckpointStore\n"
        "store = CheckpointStore(sys.argv[1]); store.acquire_lease()\n"
        "store.save_async(5, TinyTraining(width=700).state())\n"
    )
    subprocess.run([sys.executable, "-c", script, local_run], check=True)
    assert saved_steps(local_run) == [5]


def test_secrets_are_in_no_file_and_no_log(s3_folder: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="trainer")
    caplog.set_level("DEBUG", logger="cluster")
    save_steps(s3_folder, [1, 2])
    written = b"".join(storage.read_bytes(info.uri) for info in storage.list_files(s3_folder))
    for secret in ("testsecret", READER_SECRET):
        assert secret.encode() not in written
        assert secret not in caplog.text


def test_training_runs_without_permission_to_list_uploads(
    run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(uri: str, older_than: float) -> int:
        raise StorageError(f"{uri}: list uploads: access denied, older than {older_than}")

    monkeypatch.setattr("cluster.storage.api.abort_uploads", refused)
    save_steps(run, [2])
    assert saved_steps(run) == [2]
    assert "list uploads: access denied" in caplog.text


def test_a_lease_that_a_killed_process_left_half_written_is_removed(local_run: str) -> None:
    save_steps(local_run, [2])
    left = Path(local_run) / "attempts" / ".part-000002.json-abc"
    left.write_bytes(b"{")
    os.utime(left, (1, 1))
    save_steps(local_run, [4])
    assert not left.exists()
