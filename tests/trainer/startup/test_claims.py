"""A start claims its run only after all checks. A replaced trainer keeps its state."""

import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs.lease import Claimant, FencedError, LeaseHeldError, acquire_lease, newest_attempt
from schemas.errors import CheckpointError, ConfigError, CorpusError
from tests.support.fault_proxy import FaultProxy
from tests.support.waiting import wait_until
from tests.trainer.runs import Group, History, phase, train_config, write_config
from tests.trainer.single_process import run
from tests.trainer.synthetic import write_corpus
from trainer import pretrain
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.manifest import MANIFEST
from trainer.checkpoint.reading import open_checkpoint
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.pretrain import without_take_over_again
from trainer.run import loop
from trainer.startup import resume


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32,))


def uri_of(config: dict[str, Any]) -> str:
    return TrainConfig.model_validate(config).run.uri


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"seed": 2}, ConfigError),
        ({"phases": [phase(32, 16, 128, steps=2)]}, ConfigError),
        ({"data": {"manifest": "damaged"}}, CorpusError),
    ],
)
def test_a_refused_start_leaves_the_run_to_its_owner(
    tmp_path: Path, manifest: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    if "data" in change:
        shutil.copytree(manifest.parent, tmp_path / "copy")
        first, *_ = sorted((tmp_path / "copy").rglob("*.parquet"))
        for shard in first.parent.iterdir():
            shard.write_bytes(b"not a shard")
        change = {"data": {"manifest": str(tmp_path / "copy" / manifest.name)}}
    with pytest.raises(error):
        run({**config, **change})
    assert newest_attempt(uri_of(config)) == 1
    assert run(config).status == "finished"


def test_no_room_for_a_checkpoint_refuses_the_start(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"a checkpoint needs .* MiB, but 0 MiB are free"):
        run(train_config(tmp_path, manifest))
    assert not (tmp_path / "runs").exists()


def test_a_live_run_refuses_a_second_start(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    config["run"]["lease_seconds"] = 1
    owner = acquire_lease(uri_of(config), Claimant(seconds=3))
    with pytest.raises(LeaseHeldError, match="--take-over"):
        run(config)
    assert newest_attempt(uri_of(config)) == 1
    owner.release()
    run(config)


def test_a_restart_by_torchrun_does_not_take_the_run_back(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig.model_validate(train_config(tmp_path, manifest))
    config = config.model_copy(update={"run": config.run.model_copy(update={"take_over": True})})
    for restarts, expected in (("0", True), ("1", False)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        assert without_take_over_again(config).run.take_over is expected


def test_a_commit_between_search_and_claim_is_resumed_from(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner that is about to be replaced saves while the new start is still checking."""
    config = train_config(tmp_path, manifest)
    search = resume.find_source

    def search_then_commit(*arguments: Any) -> Any:
        source = search(*arguments)
        monkeypatch.setattr(loop, "find_source", search)
        assert run(config, stop_after=5).step == 5
        return source

    monkeypatch.setattr(loop, "find_source", search_then_commit)
    outcome = run(config)
    assert (outcome.resumed_from, outcome.status) == (5, "finished")


def test_a_replaced_trainer_keeps_its_state_and_says_where(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest, phases=[phase(32, 16, 128, steps=10**6)])
    config["checkpoints"] = {"every_steps": 10**6, "every_seconds": None}
    config["run"]["lease_seconds"] = 1
    with ExitStack() as cleanup:
        trainer = loop.Trainer(TrainConfig.model_validate(config), single_rank(), Hooks(), cleanup)
        for _ in range(3):
            trainer.step()
        after = acquire_lease(trainer.run_uri, Claimant(take_over=True))
        with pytest.raises(
            FencedError, match=r"replaced by attempt 2 .*its state after step \d+ is in .*disp"
        ):
            trainer.run()
    step = trainer.position.step
    (folder,) = (Path(trainer.run_uri) / "displaced").iterdir()
    with open_checkpoint(str(folder)) as checkpoint:
        assert checkpoint.load().run.position.step == step >= 3
    assert list_folders(trainer.run_uri) == []
    after.check()
    after.release()
    config["run"] = {**config["run"], "name": "next"}
    config |= {"start_from": str(folder), "phases": [phase(32, 16, 128, steps=1)]}
    assert run(config).status == "finished"


def test_double_starts_and_kills_of_processes(tmp_path: Path, manifest: Path) -> None:
    """A second process is refused with one line while the first runs. After a kill it resumes immediately."""
    config = train_config(tmp_path, manifest, phases=[phase(32, 16, 128, steps=10**6)])
    config["run"]["lease_seconds"] = 6
    path = write_config(tmp_path, config)
    first = Group(path)
    wait_until(lambda: len(list_folders(uri_of(config))) > 0)
    os.kill(first.pid(0), signal.SIGSTOP)
    second = Group(path)  # the silent one is replaced
    wait_until(lambda: newest_attempt(uri_of(config)) == 2)
    os.kill(first.pid(0), signal.SIGCONT)
    assert "replaced by attempt 2" in first.finish(2)
    assert "is training this run; stop it first" in Group(path).finish(2)
    second.kill()
    second.processes[0].join()
    third, folder = Group(path), Path(uri_of(config))
    wait_until(lambda: len(History(folder).steps_of_attempts().get(3, [])) >= 6)
    os.kill(third.pid(0), signal.SIGTERM)
    third.finish(143)
    history = History(folder)
    made = history.steps_of_attempts()
    assert sorted(history.samples()) == list(range(made[3][-1] + 1))


@pytest.mark.s3
def test_credentials_that_expire_in_the_middle_are_named_in_the_last_line(
    tmp_path: Path, manifest: Path, proxy: FaultProxy, s3_folder: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expired: list[str] = []

    def plan(_number: int, method: str, path: str) -> str:
        if method == "PUT" and MANIFEST in path:
            expired.append(path)
            return "pass"
        return "400" if expired else "pass"

    proxy.plan = plan
    config = train_config(tmp_path, manifest, phases=[phase(32, 16, 128, steps=10**6)])
    config["run"]["storage"] = s3_folder
    assert pretrain.main(["--launcher", "local", "--config", str(write_config(tmp_path, config))]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"pretrain: {s3_folder}/run/checkpoints/step-")
    assert "saves in a row failed" in last
    assert "the credentials have expired (ExpiredToken); renew them" in last
