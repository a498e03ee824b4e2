"""The README is true: CI runs its commands, its config is valid, its commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.jobs.config_file import load_config, validate
from pipeline.config import BuildConfig
from tests.docs.commands import commands
from trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = commands(README)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_ci_runs_the_commands() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    # Settings may precede them.
    assert all(
        any(line.endswith(command) for line in ci.splitlines()) for command in ("make demo", "make test")
    )
    demo = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shown = [command for command in COMMANDS if command.startswith("python ")]
    assert len(shown) == 2
    assert [command for command in shown if command not in demo] == []


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("ray job submit")])
def test_submitted_command_lines_name_real_files_and_valid_configs(command: str) -> None:
    words = shlex.split(command)
    entry, config = words[words.index("python") + 1], words[words.index("--config") + 1]
    assert (ROOT / entry).is_file()
    model = BuildConfig if "build_corpus" in entry else TrainConfig
    load_config(model, str(ROOT / config))


def test_the_config_shown_is_valid() -> None:
    (block,) = blocks("yaml")
    config = validate(BuildConfig, yaml.safe_load(block), "README.md")
    assert {source.kind for source in config.sources} == {"wikimedia", "bookcorpus"}


def test_every_command_that_is_named_exists() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "bertmill", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"`bertmill ([a-z-]+)", README))
    assert {"build", "pretrain", "export", "verify", "inspect", "doctor", "explain"} <= named
    assert all(re.search(rf"^ +{name}\b", help_text, re.M) for name in named)
