"""The configs and the Python that pages show are those of the repository, and the example script runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.jobs.config_file import load_config
from tests.infra.tools import ROOT
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.inputs.examples import Columns
from trainer.finetuning.inputs.sentences import read_table

PAGES = sorted((ROOT / "docs").glob("**/*.md"))
TUTORIALS = ROOT / "configs" / "tutorials"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)


def holds(whole: Any, part: Any) -> bool:
    """Whether ``whole`` contains everything in ``part``."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and holds(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)


SHOWN = [(page, block) for page in PAGES if page.parent.name == "tutorials" for block in blocks(page, "yaml")]


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=[page.stem for page, _ in SHOWN])
def test_config_of_a_tutorial_is_the_one_in_the_repository(page: Path, block: str) -> None:
    configs = [yaml.safe_load(path.read_text()) for path in TUTORIALS.glob("*.yaml")]
    assert any(holds(config, yaml.safe_load(block)) for config in configs), page


def test_a_changed_config_is_caught() -> None:
    assert not holds({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    assert not holds({"a": 1}, {"c": 1})


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_python_of_a_page_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


def test_labelled_sentences_fit_the_fine_tuning_config(tmp_path: Path) -> None:
    script = ROOT / "examples" / "label_sentences.py"
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], cwd=ROOT, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    config = load_config(FinetuneConfig, str(TUTORIALS / "book-language.yaml"))
    columns = Columns(text=config.files.text, label=config.files.label)
    examples = {
        name: list(read_table([str(tmp_path / f"{name}.tsv")], columns))
        for name in ("train", "validation", "test")
    }
    assert {example.label for example in examples["test"]} == {"el", "en", "ja", "pt", "ru"}
    assert len(examples["train"]) > 5 * len(examples["validation"])
