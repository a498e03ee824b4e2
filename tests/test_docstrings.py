"""The examples in docstrings give the shown results."""

import doctest
import importlib

import pytest

from tests.support.checkout import ROOT

PACKAGES = ("bertmill", "cluster", "pipeline", "schemas", "trainer")
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_give_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
