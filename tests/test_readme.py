"""The README says what is so: its commands exist, its config is a config, its files are there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.config_file import load_config, validate
from pipeline.config import BuildConfig
from trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.strip().split("  #")[0].strip()
    for line in README.splitlines()
    if re.match(r" {4}(make|ray|python) ", line)
]


def test_the_two_commands_are_make_targets_and_ci_runs_them() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    ci = (ROOT / ".ci" / "run").read_text()
    for command in COMMANDS[:2]:
        # Settings may stand before it.
        assert any(line.endswith(command) for line in ci.splitlines())
        shown = subprocess.run(
            ["make", "-n", command.split()[1]], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "pipeline/build_corpus.py" in shown.stdout or "pytest" in shown.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("ray job submit")])
def test_submitted_command_lines_name_real_files_and_valid_configs(command: str) -> None:
    words = shlex.split(command)
    entry, config = words[words.index("python") + 1], words[words.index("--config") + 1]
    assert (ROOT / entry).is_file()
    model = BuildConfig if "build_corpus" in entry else TrainConfig
    load_config(model, str(ROOT / config))


def test_the_config_shown_is_valid() -> None:
    block = re.search(r"^    output:.*?(?=\n\n)", README, re.M | re.S)
    assert block is not None
    data = yaml.safe_load("\n".join(line[4:] for line in block.group().splitlines()))
    config = validate(BuildConfig, data, "README.md")
    assert {source.kind for source in config.sources} == {"wikimedia", "bookcorpus"}


def test_every_command_of_the_table_exists() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "bertmill", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"`bertmill ([a-z-]+)", README))
    assert {"build", "pretrain", "export", "verify", "inspect", "doctor", "explain"} <= named
    assert all(re.search(rf"^    {name}\b", help_text, re.M) for name in named)


def test_files_that_the_readme_names_are_there() -> None:
    for name in re.findall(r"`((?:docs|sample|configs|benchmarks)/[^`]+|[A-Z]+\.md)`", README):
        assert (ROOT / name).exists(), name
