"""Compares both jobs on hosts that share only an object store, with power cuts, with one machine."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.cluster import hosts, many_nodes


def test_a_host_sees_the_programs_but_no_other_tmp(tmp_path: Path) -> None:
    lacking = hosts.missing()
    if lacking is not None:
        pytest.skip(lacking)
    programs, other = tmp_path / "a checkout", tmp_path / "other"
    for folder in (programs / "bin", other):
        folder.mkdir(parents=True)
    (programs / "bin/tool").write_text("a tool")
    log = tmp_path / "log"
    with hosts.network() as net:
        host = net.add("one")
        looks = (
            f"cat '{programs}/bin/tool'; ls {other}; touch '{programs}/x' /etc/x; touch /tmp/x && echo own"
        )
        host.start(["sh", "-c", looks], {"PATH": os.environ["PATH"]}, log, [programs, programs / "bin"])
        while host.running:
            time.sleep(0.1)
    text = log.read_text()
    assert text.startswith("a tool")
    assert "own" in text
    assert f"cannot access '{other}'" in text
    assert text.count("Read-only file system") == 2


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.s3
@pytest.mark.timeout(10_800)
def test_many_nodes_with_power_cuts_give_the_bytes_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.environ.get("BERTMILL_MANY_NODES"):
        pytest.skip("takes four minutes of two cores: set BERTMILL_MANY_NODES=1 to run it, as CI does")
    lacking = hosts.missing()
    if lacking is not None:
        pytest.skip(lacking)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "")  # monkeypatch restores it
    seen = many_nodes.run(tmp_path)
    print(json.dumps(seen, indent=1))
    assert [kill["stage"] for kill in seen["build"]["killed"]] == ["extract", "instances"]
    # The power cuts happened during the stages, not after them.
    assert seen["build"]["killed"][0]["units done"] < seen["build"]["units"]
    assert seen["build"]["killed"][1]["units done"] < seen["build"]["slots"]
    assert seen["pretrain"]["attempts"] == 2
    assert seen["single"]["equal files"] > 5
