"""Tests builds with a full disk, with faulty storage, and with another build on the same output."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import placement_group, remove_placement_group

from cluster import storage
from cluster.jobs.config_file import validate
from cluster.jobs.lease import Claimant, acquire_lease
from pipeline.build import build, work_folder
from pipeline.config import BuildConfig
from pipeline.verify.corpus import verify_corpus
from schemas.errors import StorageError
from tests.pipeline import builds
from tests.pipeline.conftest import Built
from tests.support.fault_proxy import FaultProxy
from tests.support.ray_cluster import RayCluster
from tests.support.s3_server import S3Server
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.ray


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system with room for 200 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system requires root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_reported_and_leaves_no_marker_without_its_files(
    built: Built, small_disk: Path
) -> None:
    """Case pipeline-027. With enough space, the same command completes the build."""
    output = small_disk / "corpus"
    config = validate(BuildConfig, builds.held_out_config(output), "test")
    with pytest.raises(StorageError, match=rf"^{output}/.*No space left on device$"):
        build(config)
    assert not (output / "manifest.json").exists()
    done = list(output.rglob("*.done.json"))
    for marker in done:
        for file in json.loads(marker.read_text())["files"]:
            path = marker.parent / file["path"]
            found = path if path.exists() else output / file["path"]
            assert found.stat().st_size == file["bytes"]
    kept = {marker: marker.stat().st_mtime_ns for marker in done}
    subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
    build(config)
    assert builds.published_files(output) == built.files
    assert {marker: marker.stat().st_mtime_ns for marker in kept} == kept


def one_dump(output: Path, **fields: Any) -> dict[str, Any]:
    """A config with few tasks: Ray starts a worker for each concurrent task of another driver."""
    (source,) = builds.config(output)["sources"]
    instances = {**builds.config(output)["instances"], "bucket_bytes": 1 << 20}
    sources = [{**source, "paths": source["paths"][:1]}]
    return builds.config(output, **{"sources": sources, "instances": instances, **fields})


def start(path: Path, cluster: RayCluster) -> "subprocess.Popen[str]":
    # At its end a build waits for the next report of its metrics, by default for ten seconds.
    joined = {"RAY_ADDRESS": cluster.address, "RAY_metrics_report_interval_ms": "1000"}
    return subprocess.Popen(
        builds.command(path),
        env={**builds.environment(), **joined},
        cwd=builds.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, errors


def test_two_concurrent_builds_on_one_output(
    ray_session: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live owner is not replaced. The second of two builds is refused or runs after the first."""
    output, undisturbed = tmp_path / "corpus", tmp_path / "undisturbed"
    assert builds.run_here(builds.write_config(tmp_path, one_dump(undisturbed))) == 0
    path = builds.write_config(tmp_path, one_dump(output))
    owner = acquire_lease(work_folder(str(output)), Claimant(seconds=1))
    assert builds.run_here(path) == 2
    owner.release()
    refused = capsys.readouterr().err
    assert f"build_corpus: {output}/work: attempt 1 (host " in refused
    assert "is building this corpus; wait until it has ended, or stop it" in refused.splitlines()[-1]
    outcomes = [outcome(process) for process in [start(path, ray_session), start(path, ray_session)]]
    assert sorted(status for status, _ in outcomes) in ([0, 0], [0, 2]), outcomes
    assert builds.published_files(output) == builds.published_files(undisturbed)
    assert list(verify_corpus(str(output)).problems) == []


def test_two_concurrent_configs_on_one_output(
    ray_session: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them gets the output. The other exits with an error that says so."""
    output = tmp_path / "corpus"
    paths = [builds.write_config(tmp_path, one_dump(output, seed=seed), f"{seed}.yaml") for seed in (1, 2)]
    outcomes = [outcome(process) for process in [start(path, ray_session) for path in paths]]
    assert sorted(status for status, _ in outcomes) == [0, 2], outcomes
    refused = next(errors for status, errors in outcomes if status == 2)
    reasons = ("is building this corpus", "holds a build of another config (differs in seed)")
    assert any(reason in refused.splitlines()[-1] for reason in reasons)
    assert list(verify_corpus(str(output)).problems) == []
    changed = builds.write_config(tmp_path, one_dump(output, seed=3))
    assert builds.run_here(changed) == 2
    refused = capsys.readouterr().err
    assert "holds a build of another config (differs in seed)" in refused.splitlines()[-1]


def test_a_build_that_waits_for_a_cpu_says_so_and_stops(ray_session: RayCluster, tmp_path: Path) -> None:
    everything = placement_group([{"CPU": 4}])
    assert everything.wait(HANG_SECONDS)
    process = start(builds.write_config(tmp_path, builds.config(tmp_path / "corpus")), ray_session)
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "waiting for" in line)
        assert "build: waiting for 1 CPU, the cluster has 4 CPUs, but only 0 CPUs free" in said
        process.send_signal(signal.SIGTERM)
        status, errors = outcome(process)
    finally:
        process.kill()
        remove_placement_group(everything)
    assert status == 143
    assert errors.splitlines()[-1] == "build_corpus: stopped; rerun the same command to resume"


@pytest.mark.slow
def test_a_faulty_line_to_the_storage_changes_no_byte(
    built: Built, s3_server: S3Server, s3_folder: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Injects status 503, broken connections, and lost responses to completed requests."""
    chance = random.Random(1)

    def plan(_number: int, _method: str, _path: str) -> str:
        return chance.choices(["pass", "503", "reset", "lost"], [0.94, 0.04, 0.01, 0.01])[0]

    path = builds.write_config(tmp_path, builds.held_out_config(s3_folder))
    with FaultProxy(s3_server.port, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        done = builds.run(path, "--cpus", "2")
    assert done.returncode == 0, done.stderr
    assert min(proxy.done[fault] for fault in ("503", "reset", "lost")) > 0
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    mirror = tmp_path / "mirror"
    for info in storage.list_files(s3_folder):
        name = info.uri.removeprefix(s3_folder).lstrip("/")
        storage.put_bytes(storage.join(str(mirror), name), storage.read_bytes(info.uri))
    assert builds.published_files(mirror) == built.files
