"""Modules, functions and config fields that the pages name exist."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from pydantic import BaseModel

from pipeline.config import BuildConfig
from tests.infra.tools import ROOT
from trainer.config import TrainConfig
from trainer.finetuning.config import FinetuneConfig

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOTTED = re.compile(r"`(?:--)?([a-z_]\w*(?:\.\w+)+)(?:\(\)|=[^`]*|: [^`]*)?`")
PACKAGES = ("bertmill", "pipeline", "trainer", "cluster", "schemas", "benchmarks")
CONFIGS: tuple[type[BaseModel], ...] = (BuildConfig, TrainConfig, FinetuneConfig)
FILE = re.compile(r"\.(py|md|yaml|json|jsonl|txt|toml|tsv|html|pt|xml|bz2|parquet|safetensors|sh|svg|svg)$")


def is_code(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: ModuleType | object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def is_field(name: str) -> bool:
    """Whether a dotted name is a field of one of the configs. A number means a position in a list."""
    return any(_in_model(model, name.split(".")) for model in CONFIGS)


def _in_model(model: type[BaseModel], parts: list[str]) -> bool:
    field = model.model_fields.get(parts[0])
    if field is None:
        return False
    rest = [part for part in parts[1:] if not part.isdigit() and part != "N"]
    if not rest:
        return True
    return any(_in_model(inner, rest) for inner in _models(field.annotation)) or field.annotation is dict


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def sections() -> set[str]:
    return {name for model in CONFIGS for name in model.model_fields}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_names_of_code_and_config_fields_exist(page: Path) -> None:
    wrong = []
    for name in DOTTED.findall(page.read_text(encoding="utf-8")):
        first = name.split(".")[0]
        if FILE.search(name):
            continue
        if (first in PACKAGES and not is_code(name)) or (first in sections() and not is_field(name)):
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["pipeline.no_such", "trainer.run.loop.no_such", "dedup.nearly", "phases.0.rate"]
)
def test_wrong_name_is_caught(name: str) -> None:
    assert not is_code(name)
    assert not is_field(name)
