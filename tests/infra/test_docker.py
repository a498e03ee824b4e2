"""Tests that the Dockerfile passes hadolint, copies existing files, pins packages, and is not run as root."""

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.requirements import requirements
from tests.infra.tools import ROOT, run_tool

DOCKERFILE = ROOT / "infra" / "Dockerfile"


def _lint(text: str) -> list[str]:
    """The rules that ``text`` breaks."""
    done = run_tool("hadolint", "--no-color", "-", text=text)
    found = re.findall(r"\b(?:DL|SC)\d{4}\b", done.stdout)
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return found


def _instructions(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def test_hadolint_finds_nothing() -> None:
    assert _lint(DOCKERFILE.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("python:3.11.14-slim-bookworm\n", "python\n", "DL3006"),
        ("python:3.11.14-slim-bookworm AS", "python:latest AS", "DL3007"),
        ("--no-install-recommends ", "", "DL3015"),
        ("USER 1000:1000", "USER root", "DL3002"),
        ("    && rm -rf /var/lib/apt/lists/* \\\n", "", "DL3009"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
        ('CMD ["bertmill", "doctor"]', "CMD bertmill doctor", "DL3025"),
        ("pip install --no-cache-dir --no-deps", "pip install ray && pip install --no-deps", "DL3013"),
    ],
)
def test_mistake_is_caught(old: str, new: str, rule: str) -> None:
    text = DOCKERFILE.read_text()
    assert old in text
    assert rule in _lint(text.replace(old, new))


def test_image_does_not_run_as_root() -> None:
    users = [words for name, words in _instructions(DOCKERFILE.read_text()) if name == "USER"]
    assert users[-1] == "1000:1000"


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignore if line.startswith("!")]
    sources = [
        source
        for name, words in _instructions(DOCKERFILE.read_text())
        if name == "COPY" and not words.startswith("--from")
        for source in words.split()[:-1]
    ]
    assert {"pipeline", "trainer", "constraints.txt"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source
    for package in re.findall(r'"(\w+)\*"', (ROOT / "pyproject.toml").read_text()):
        assert package in sources, f"{package} is installed from the image's folder"


def test_libraries_are_pinned() -> None:
    pinned = {
        re.split(r"==", line)[0].split("[")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = requirements((ROOT / "pyproject.toml").read_text())
    assert not [one for one in wanted if one.startswith("torch")]
    names = {re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace("_", "-") for one in wanted}
    assert {"ray", "pyarrow"} <= names
    # Ray's launcher runs on the head, in the image, and its providers import these.
    assert {"boto3", "google-api-python-client"} <= names
    assert names - pinned <= {"setuptools"}
    assert "torch" in pinned
    assert Path(DOCKERFILE).read_text().count("-c constraints.txt") == 1


def _root_shell() -> str:
    """The commands that prepare the second stage."""
    (found,) = [words for name, words in _instructions(DOCKERFILE.read_text()) if "useradd" in words]
    return found


def test_the_image_has_what_rays_launcher_runs_in_it() -> None:
    """`ray up` copies with rsync through `docker exec`. The head reaches its workers with ssh and rsync."""
    import inspect

    from ray.autoscaler._private import command_runner

    text = inspect.getsource(command_runner)
    assert "rsync -e '{} exec -i'" in text
    assert '["ssh", "-tt"]' in text
    installed = re.search(r"apt-get install -y --no-install-recommends ([\w .+-]+?) &&", _root_shell())
    assert installed
    assert {"rsync", "openssh-client"} <= set(installed[1].split())


def test_the_token_is_mounted_where_ray_looks_for_it() -> None:
    """Ray's launcher uses the home folder in the image's variables, or else root's."""
    from ray.autoscaler._private.docker import docker_start_cmds

    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(
        words for name, words in _instructions(DOCKERFILE.read_text()) if name == "ENV"
    )))  # fmt: skip
    user = re.search(r"useradd --uid 1000 .*--create-home (\w+)", _root_shell())
    assert user
    assert variables["HOME"] == f"/home/{user[1]}"
    mounts = yaml.safe_load((ROOT / "cluster/aws.yaml").read_text())["file_mounts"]
    command = docker_start_cmds("ubuntu", "image", mounts, "bertmill", [], "x", variables["HOME"], "docker")
    assert f":/home/{user[1]}/.ray/auth_token" in command
    # Docker would create a missing folder as root.
    assert f"install -d -o {user[1]} -g {user[1]} -m 700 /home/{user[1]}/.ray" in _root_shell()


def test_a_login_shell_finds_the_programs(tmp_path: Path) -> None:
    """Ray's launcher runs its commands in login shells, and Debian's /etc/profile resets PATH."""
    from ray.autoscaler._private.command_runner import _with_interactive

    assert "--login" in _with_interactive("ray start")
    (tmp_path / "profile.d").mkdir()
    line = re.search(r"(echo .*) > /etc/profile\.d/(\w+\.sh)", _root_shell())
    assert line
    written = subprocess.run(["sh", "-c", line[1]], capture_output=True, text=True, check=True).stdout
    shell = f"PATH=/usr/bin:/bin; {written.strip()}; echo $PATH"
    found = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "/opt/venv/bin:/usr/bin:/bin"
