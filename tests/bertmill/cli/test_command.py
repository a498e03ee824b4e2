"""The console command: its help, its exit statuses, and mistakes as one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertmill.cli import main
from bertmill.cli.command import GROUPS, argument_parser
from bertmill.cli.doctor import examine

ROOT = Path(__file__).resolve().parents[3]


def bertmill(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bertmill", *words],
        input=stdin, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_lists_every_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    (choices,) = (action.choices for action in argument_parser()._actions if action.dest == "command")
    assert choices is not None
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(choices)
    for title, names in GROUPS.items():
        listed = shown.partition(f"  {title}:\n")[2].split("\n\n")[0]
        assert re.findall(r"^    (\S+)", listed, re.M) == list(names)


def test_an_unknown_command_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bild"])
    assert ended.value.code == 2
    assert "bild" in capsys.readouterr().err


def test_a_users_mistake_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "/no/such/run", "--to", "/tmp/x"]) == 2
    mistake = "/no/such/run: neither a run with checkpoints nor a model with a config.json"
    assert capsys.readouterr().err == f"bertmill: {mistake}\n"


def test_explain_answers_every_line_and_continues_after_a_bad_one() -> None:
    lines = ['{"id": "a", "lang": "en", "text": "One. Two."}', "{", "[1]", '{"id": "b"}',
             '{"id": "c", "lang": "en", "text": "Last."}']  # fmt: skip
    done = bertmill("explain", "sentences", stdin="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [answer["id"] for answer in answers] == ["a", None, None, "b", "c"]
    assert answers[0]["output"] == ["One.", "Two."]
    assert "line 2: not JSON" in answers[1]["error"]
    assert "line 3" in answers[2]["error"]
    assert "is missing" in answers[3]["error"]


def test_explain_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for area, needed in (("tokens", "--vocab"), ("dump", "FILE")):
        assert main(["explain", area]) == 2
        assert needed in capsys.readouterr().err


def test_doctor_tries_reading_and_writing(tmp_path: Path) -> None:
    findings = list(examine([str(tmp_path), "/proc/no-such-folder"]))
    levels = {finding.text.split(":")[0]: finding.level for finding in findings}
    assert levels[str(tmp_path)] == "ok"
    assert levels["/proc/no-such-folder"] == "fail"
    assert list(tmp_path.iterdir()) == []
    assert any(finding.text.startswith("torch ") and finding.level == "ok" for finding in findings)


def test_output_into_a_closed_pipe_gives_no_traceback() -> None:
    done = subprocess.run(
        f"yes '{{\"id\": 1, \"lang\": \"en\", \"text\": \"x\"}}' | head -20000 | "
        f"{sys.executable} -m bertmill explain normalize | head -1",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["output"] == "x"
    assert "Traceback" not in done.stderr


def test_the_console_command_starts_without_the_large_libraries() -> None:
    large = {"torch", "ray", "transformers", "datasets"}
    code = f"import sys, bertmill.cli; print(sorted({large!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
