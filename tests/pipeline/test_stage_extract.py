from pathlib import Path

import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.plan import plan_units
from pipeline.stage_extract import extract_folder
from schemas.errors import ConfigError
from tests.pipeline.sources.dumps import FOOT, HEAD, page


def test_the_stage_is_made_anew_when_dump_or_rules_change(tmp_path: Path) -> None:
    dump, rules = tmp_path / "enwiki.xml", tmp_path / "rules.yaml"

    def folder() -> str:
        config = BuildConfig(
            output="out",
            sources=[Source(name="wiki", kind="wikimedia", paths=[str(dump)])],
            extraction=Extraction(template_rules=str(rules)),
        )
        return extract_folder(config, str(tmp_path / "work"), plan_units(config)).uri

    dump.write_text(HEAD + page(1) + FOOT)
    with pytest.raises(ConfigError, match=r"template_rules: .*rules\.yaml: no such file"):
        folder()
    rules.write_text("rules: {}\n")
    first = folder()
    assert folder() == first
    rules.write_text("rules: {all: {silent: x}}\n")
    second = folder()
    dump.write_text(HEAD + page(2) + FOOT)
    assert len({first, second, folder()}) == 3
