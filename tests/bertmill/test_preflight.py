"""``bertmill doctor --config`` finds what would stop a job, without starting it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertmill.cli.command import main
from bertmill.preflight import examine_config
from cluster.jobs.lease import Claimant, acquire_lease
from pipeline.build import work_folder
from tests.pipeline import builds
from tests.support.fault_proxy import FaultProxy
from tests.trainer.runs import train_config, write_config
from tests.trainer.synthetic import write_corpus


def failures(path: Path) -> list[str]:
    return [finding.text for finding in examine_config(str(path)) if finding.level == "fail"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32,))


def test_a_config_that_can_start_has_no_failure_and_leaves_nothing(tmp_path: Path, manifest: Path) -> None:
    training = write_config(tmp_path, train_config(tmp_path, manifest))
    build = builds.write_config(tmp_path, builds.config(tmp_path / "new" / "corpus"))
    assert failures(training) == failures(build) == []
    assert sorted(tmp_path.iterdir()) == sorted((training, build))


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"seed": "x"}, "seed: Input should be a valid integer"),
        ({"data": {"manifest": "/nowhere/manifest.json"}}, "/nowhere/manifest.json: "),
        ({"run": {"name": "run", "storage": "/proc/runs"}}, "/proc/runs/run: /proc/"),
        ({"start_from": "/nowhere/model"}, "/nowhere/model: no such file"),
        ({"data": {"manifest": "MANIFEST", "disk_cache": "/proc/cache"}}, "/proc/cache: /proc/"),
    ],
)
def test_each_problem_of_a_training_is_a_line(
    tmp_path: Path, manifest: Path, changes: dict[str, Any], failure: str
) -> None:
    if changes.get("data", {}).get("manifest") == "MANIFEST":
        changes = {"data": {**changes["data"], "manifest": str(manifest)}}
    found = failures(write_config(tmp_path, {**train_config(tmp_path, manifest), **changes}))
    assert len(found) <= 2  # /proc also has no room
    assert failure in "\n".join(found)


def test_no_room_for_a_checkpoint_is_a_line(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    (found,) = failures(write_config(tmp_path, train_config(tmp_path, manifest)))
    assert "a checkpoint needs" in found


def test_a_missing_source_and_a_running_build_are_lines(tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    fields = builds.config(output)
    fields["sources"][0]["paths"] = ["/nowhere/dump.xml.bz2"]
    owner = acquire_lease(work_folder(str(output)), Claimant(seconds=1))
    found = failures(builds.write_config(tmp_path, fields))
    owner.release()
    assert len(found) == 2
    assert "/nowhere/dump.xml.bz2" in found[0]
    assert "is building this corpus" in found[1]


@pytest.mark.s3
def test_a_store_without_conditional_puts_gets_a_clear_verdict(
    tmp_path: Path, manifest: Path, proxy: FaultProxy, s3_folder: str
) -> None:
    proxy.plan = lambda _number, method, _path: "501" if method == "PUT" else "pass"
    config = train_config(tmp_path, manifest)
    config["run"]["storage"] = s3_folder
    (found,) = failures(write_config(tmp_path, config))
    assert "does not implement this request" in found
    assert "bertmill needs conditional puts" in found
    assert len(proxy.requests) < 10


def test_the_command_reports_and_fails(
    tmp_path: Path, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, train_config(tmp_path, manifest))
    assert main(["doctor", "--config", str(config)]) == 0
    assert f"ok    {config}: a valid training config" in capsys.readouterr().out
    config.write_text(yaml.safe_dump({"run": {"name": "run"}}))
    assert main(["doctor", "--config", str(config)]) == 1
    assert f"fail  {config}: run.storage: Field required" in capsys.readouterr().out
