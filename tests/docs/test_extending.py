"""The plug-ins that docs/guides/extending.md shows, taken from the page and used in an extraction."""

import re
from pathlib import Path

import pytest

from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.pipeline.test_plugins import config_of, extracted
from tests.support.ray_cluster import ROOT

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
TEXT = (
    "The harvest was good this year and the barn is full. We will write again when the snow has melted. " * 3
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with the classes and functions of the page. Its first block uses a corpus instead."""
    text = (ROOT / "docs/guides/extending.md").read_text(encoding="utf-8")
    _, *plugins = _BLOCK.findall(text)
    assert len(plugins) == 3
    (tmp_path / "of_the_page.py").write_text("\n\n".join(plugins), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "of_the_page"


def test_the_reader_and_the_filter(tmp_path: Path, module: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(f"{TEXT}\n\n{'12345 67890 ' * 30}\n", encoding="utf-8")
    source = {"name": "notes", "kind": f"{module}:Notes", "lang": "en", "paths": [str(path)]}
    filters = [{"use": f"{module}:MaxDigits", "options": {"share": 0.2}}]
    (row,), funnel = extracted(config_of(tmp_path, source, extraction={"filters": filters}))
    assert " ".join(row["sentences"]) == TEXT.strip()
    assert dict(funnel.languages["en"].skipped) == {"empty-line": 1, "too-many-digits": 1}


def test_the_template_functions(tmp_path: Path, module: str) -> None:
    body = "The water has {{temperature|12}} in spring. {{Weather box/old|x}}It is clear and deep. " * 4
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1, body) + FOOT, encoding="utf-8")
    source = {"name": "w", "kind": "wikimedia", "lang": "en", "paths": [str(tmp_path / "enwiki.xml")]}
    config = config_of(tmp_path, source, extraction={"template_functions": f"{module}:RULES"})
    (row,), _ = extracted(config)
    assert " ".join(row["sentences"]).startswith("The water has 12 °C in spring. It is clear and deep.")
