"""Tests job submission from the command line to a real Ray with token authentication, and early errors."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bertmill.cli import main
from cluster.ray_cluster.submit import attempts, exit_status, job_name, next_submission_id, read_runtime_env
from schemas.errors import ClusterError, ConfigError
from tests.support.ray_head import RayHead, ray_head
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[3]


def _details(submission: str, status: str = "SUCCEEDED", code: int | None = None) -> object:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

    return JobDetails(
        type="SUBMISSION", submission_id=submission, status=status, entrypoint="true", driver_exit_code=code
    )


def test_job_name_depends_on_content_and_overrides() -> None:
    name = job_name("build", "s3://b/configs/wiki 104.yaml", b"seed: 1", [])
    assert name.startswith("build-wiki-104-")
    assert name == job_name("build", "elsewhere/wiki 104.yaml", b"seed: 1", [])
    others = {
        job_name("build", "wiki 104.yaml", b"seed: 2", []),
        job_name("build", "wiki 104.yaml", b"seed: 1", ["--seed=2"]),
        job_name("pretrain", "wiki 104.yaml", b"seed: 1", []),
    }
    assert len(others | {name}) == 4


@given(st.sets(st.integers(2, 50)))
def test_next_attempt_follows_the_last(numbers: set[int]) -> None:
    jobs = [_details("build-x")] + [_details(f"build-x-{number}") for number in numbers]
    jobs += [_details("build-x-extra"), _details("build-xy"), _details("build-xy-99")]
    assert set(attempts("build-x", jobs)) == {1, *numbers}
    assert next_submission_id("build-x", jobs) == f"build-x-{max({1, *numbers}) + 1}"
    assert next_submission_id("new", jobs) == "new"


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_a_job_that_is_going_is_not_submitted_again(status: str) -> None:
    jobs = [_details("build-x", "FAILED"), _details("build-x-2", status)]
    with pytest.raises(ClusterError, match=f"build-x-2 is already {status.lower()}"):
        next_submission_id("build-x", jobs)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("FAILED", 0, 1),
        ("FAILED", -9, 1),
        ("STOPPED", None, 1),
    ],
)
def test_exit_status(status: str, code: int | None, expected: int) -> None:
    assert exit_status(_details("x", status, code)) == expected


def test_runtime_env_of_the_repository() -> None:
    env = read_runtime_env(str(ROOT / "infra/runtime_env.yaml"), ROOT, {"AWS_REGION": "us-east-1"})
    assert env["working_dir"] == str(ROOT)
    assert {".git/", ".venv/", "runs/"} <= set(env["excludes"])
    assert env["env_vars"]["AWS_REGION"] == "us-east-1"
    assert env["env_vars"]["RAY_TRAIN_V2_ENABLED"] == "1"
    assert "excludes" not in read_runtime_env(str(ROOT / "infra/runtime_env.yaml"), None, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a", "must be a mapping"), ("a: [", "not YAML"), ("working_dir: .", "use --working-dir")],
)
def test_runtime_env_mistakes(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "env.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_runtime_env(str(path), tmp_path, {})
    assert str(path) in str(caught.value)


def _build_config(folder: Path, output: str, **fields: object) -> Path:
    path = folder / "config.yaml"
    sources = [{"name": "books", "kind": "text", "paths": ["sample/books/*.txt.gz"], "lang": "en"}]
    path.write_text(yaml.safe_dump({"output": output, "sources": sources, **fields}))
    return path


@pytest.mark.parametrize(
    ("output", "fields", "words", "message"),
    [
        ("runs/corpus", {}, [], "output: 'runs/corpus' is relative"),
        ("/data/corpus", {"vocabulary": {"sise": 3}}, [], "vocabulary.sise: unknown field"),
        ("/data/corpus", {}, ["--env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE: the variable is not set"),
        ("/data/corpus", {}, [], "not in "),
        ("/data/corpus", {}, ["--image"], "must be a URI"),
        ("/data/corpus", {}, ["--working-dir", "/tmp"], "contains no pipeline/build_corpus.py"),
        ("/data/corpus", {}, ["--", "--seed=-1"], "seed"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_is_sent(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str,
    fields: dict[str, object], words: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:2")  # so that it is put back afterwards
    config = _build_config(tmp_path, output, **fields)
    assert main(["submit", "build", "--config", str(config), "--address", "http://127.0.0.1:1", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    with ray_head(tmp_path_factory.mktemp("head")) as running:
        yield running


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory whose entry file prints its environment and exits with the given status."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pipeline", "infra", ".git", "runs", "configs"):
        (folder / name).mkdir()
    (folder / ".git/objects").write_bytes(b"x" * 1000)
    (folder / "runs/old").write_bytes(b"x" * 1000)
    (folder / "infra/runtime_env.yaml").write_bytes((ROOT / "infra/runtime_env.yaml").read_bytes())
    (folder / "pipeline/build_corpus.py").write_text(
        "import json, os, sys, time\n"
        "seed = [w for w in sys.argv if w.startswith('--seed=')]\n"
        "code = int(seed[0][7:]) if seed else 0\n"
        "print(json.dumps({'argv': sys.argv, 'files': sorted(os.listdir('.')),\n"
        "    'secret': os.getenv('SECRET'), 'v2': os.getenv('RAY_TRAIN_V2_ENABLED')}), flush=True)\n"
        "time.sleep(300 if code == 99 else 1)\n"
        "print('the end', flush=True)\n"
        "sys.exit(code)\n"
    )
    _build_config(folder / "configs", "s3://bucket/corpus").rename(folder / "configs/books.yaml")
    return folder


def _bertmill(head: RayHead, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**head.environment, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-m", "bertmill", "submit", *words],
        check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.ray
class TestOnRay:
    """One Ray head with a token. Every call is a separate process, as for a user."""

    def test_output_and_exit_status_come_back(self, head: RayHead, checkout: Path) -> None:
        words = ["build", "--config", "configs/books.yaml", "--env", "SECRET"]
        done = _bertmill(head, checkout, *words, SECRET="hush")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        seen = json.loads(next(line for line in lines if line.startswith("{")))
        assert seen["argv"] == ["pipeline/build_corpus.py", "--config", "configs/books.yaml"]
        assert "configs" in seen["files"]
        assert not {".git", "runs"} & set(seen["files"])
        assert seen["secret"] == "hush"
        assert seen["v2"] == "1"
        assert lines.count("the end") == 1
        assert "hush" not in done.stderr

        again = _bertmill(head, checkout, *words, "--", "--seed=7", SECRET="hush")
        assert again.returncode == 7
        assert "failed" in again.stderr

    def test_second_attempt_gets_a_number_and_a_running_one_is_refused(
        self, head: RayHead, checkout: Path
    ) -> None:
        words = [
            "build",
            "--config",
            "configs/books.yaml",
            "--name",
            "endless",
            "--no-wait",
            "--",
            "--seed=99",
        ]
        assert _bertmill(head, checkout, *words).returncode == 0
        refused = _bertmill(head, checkout, *words)
        assert refused.returncode == 2
        assert "endless is " in refused.stderr
        assert _bertmill(head, checkout, "stop", "endless").returncode == 0
        stopped = _bertmill(head, checkout, "follow", "endless")
        assert stopped.returncode == 1
        assert "stopped" in stopped.stderr
        second = _bertmill(head, checkout, *words)
        assert "endless-2" in second.stderr
        assert _bertmill(head, checkout, "stop", "endless-2").returncode == 0

    def test_without_the_token_one_clear_line(self, head: RayHead, checkout: Path) -> None:
        words = ["follow", "endless"]
        wrong = _bertmill(head, checkout, *words, RAY_AUTH_TOKEN="wrong")
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr
        assert "RAY_AUTH_TOKEN" in wrong.stderr
        nowhere = _bertmill(head, checkout, "follow", "x", "--address", "http://127.0.0.1:1")
        assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1), nowhere.stderr
        assert "no Ray dashboard" in nowhere.stderr
        unknown = _bertmill(head, checkout, "follow", "no-such-job")
        assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1), unknown.stderr
        assert "no-such-job" in unknown.stderr
