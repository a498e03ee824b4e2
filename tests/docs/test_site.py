"""The site builds without a warning, its links work, and its reference covers the code."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pydantic import BaseModel

from bertmill.cli.command import argument_parser
from cluster.jobs.config_file import field_help
from pipeline.config import BuildConfig
from tests.infra.tools import ROOT
from trainer.config import TrainConfig
from trainer.finetuning.config import FinetuneConfig

pytest.importorskip("mkdocs", reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stderr[-2000:])
    return folder


class _Page(HTMLParser):
    """The ids and the link targets of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.targets.append(value)


def test_every_link_and_anchor_of_the_built_pages_exists(site: Path) -> None:
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    assert [fault for path, page in pages.items() for fault in _broken(path, page, pages, site)] == []


def _broken(path: Path, page: _Page, pages: dict[Path, _Page], site: Path) -> list[str]:
    faults = []
    for target in page.targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or path.name == "404.html":
            continue
        place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        place = place / "index.html" if place.is_dir() else place
        anchor = unquote(parts.fragment)
        if not place.exists() or (anchor and place in pages and anchor not in pages[place].ids):
            faults.append(f"{path.relative_to(site)}: {target}")
    return faults


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css|woff2?)"', text) == []


@pytest.mark.parametrize(
    ("page", "model"),
    [("build-config", BuildConfig), ("training-config", TrainConfig), ("fine-tuning-config", FinetuneConfig)],
)
def test_reference_has_every_field_of_a_config(site: Path, page: str, model: type[BaseModel]) -> None:
    ids = _Page(site / "reference" / page / "index.html").ids
    fields = re.findall(r"^  ([\w.]+) ", field_help(model), re.M)
    assert len(fields) > 20
    assert [name for name in fields if name.removesuffix(".N") not in ids] == []


def test_reference_has_every_command(site: Path) -> None:
    ids = _Page(site / "reference" / "command-line" / "index.html").ids
    commands = re.search(r"\{(.+?)\}", argument_parser().format_usage().replace("\n", ""))
    names = re.findall(r"^    ([a-z-]+)", argument_parser().format_help(), re.M) if commands is None else []
    assert {"build", "pretrain", "export", "submit"} <= set(names)
    assert [name for name in names if f"bertmill-{name}" not in ids] == []
