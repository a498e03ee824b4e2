"""Tests that the version of the rules covers the settings and all code that the text of a page depends on."""

from pathlib import Path

import grimp
import pytest

from pipeline.config import BuildConfig
from pipeline.documents.reuse.rules_version import RULES, SIGNATURE_RULES, cleaning_record, signature_record
from pipeline.engine.build_identity import differences

# Modules without code that affects the text: plain classes, and the loading of plug-ins, which have hashes.
_APART = {"pipeline", "pipeline.config", "pipeline.documents", "pipeline.dedup", "pipeline.sources",
          "pipeline.sources.documents"}  # fmt: skip


def config(**extraction: object) -> BuildConfig:
    source = {"name": "wiki", "kind": "wikimedia", "paths": ["enwiki.xml"]}
    return BuildConfig.model_validate({"output": "out", "sources": [source], "extraction": extraction})


def test_every_module_that_cleaning_imports_is_part_of_the_version() -> None:
    graph = grimp.build_graph("pipeline")
    modules = {*graph.find_upstream_modules("pipeline.documents.cleaning"), "pipeline.documents.cleaning"}
    covered = tuple(f"pipeline.{name.removesuffix('.py').replace('/', '.')}" for name in RULES)
    outside = {
        module
        for module in modules - _APART
        if not any(module == name or module.startswith(f"{name}.") for name in covered)
    }
    assert outside == set()


def test_every_module_that_signatures_import_is_part_of_their_version() -> None:
    graph = grimp.build_graph("pipeline", "schemas")
    covered = {
        f"pipeline.{name}".replace("pipeline.../", "").removesuffix(".py").replace("/", ".")
        for name in SIGNATURE_RULES
    }
    modules = {"pipeline.dedup.minhash", "pipeline.dedup.shingles"}
    modules |= {upstream for module in modules for upstream in graph.find_upstream_modules(module)}
    assert covered == modules
    assert signature_record(0.8) != signature_record(0.85)


def test_settings_rules_and_plugins_count_and_units_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: {}\n")
    plain = cleaning_record(config())
    assert cleaning_record(config(unit_bytes=1 << 20, learn_templates=False)) == plain
    assert differences(plain, cleaning_record(config(headings="keep"))) == ["extraction.headings"]
    assert differences(plain, cleaning_record(config(template_rules=str(rules)))) == ["template_rules"]
    first = cleaning_record(config(template_rules=str(rules)))
    rules.write_text("rules: {all: {silent: x}}\n")
    assert differences(first, cleaning_record(config(template_rules=str(rules)))) == ["template_rules"]
    monkeypatch.syspath_prepend(tmp_path)
    plugin = tmp_path / "keep_all.py"
    plugin.write_text("class Keep:\n    def filter(self, document):\n        return True\n")
    changed = differences(plain, cleaning_record(config(filters=["keep_all:Keep"])))
    assert changed == ["extraction.filters", "plugins.keep_all:Keep"]
