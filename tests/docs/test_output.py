"""The output in the README and the tutorials has the words that the programs print."""

import inspect
import re
from types import ModuleType

import pytest

from pipeline.report import tables
from tests.infra.tools import ROOT
from trainer.run import console

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
# Pattern at the start of a line -> the module that prints such lines.
PRINTED_BY: tuple[tuple[str, ModuleType], ...] = (
    (r"language  |skipped or |set  ", tables),
    (r"step \d+/", console),
)
NUMBER = re.compile(r"[\d.,:/]*\d(e[-+]\d+)?%?")


def shown() -> list[tuple[str, str, ModuleType]]:
    """Page, line and printing module of the lines that can be checked."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in block.splitlines():
                found += [(page.name, line, module) for start, module in PRINTED_BY if re.match(start, line)]
    return found


def unknown_words(line: str, module: ModuleType) -> list[str]:
    """The cells of ``line``, numbers aside, that the source of ``module`` does not have."""
    source = inspect.getsource(module)
    cells = [NUMBER.sub("", cell).strip() for cell in re.split(r"  +|: |, | \(", line)]
    return [cell for cell in cells if re.match(r"[A-Za-z]+", cell) and cell.split()[0] not in source]


SHOWN = shown()


def test_lines_of_both_jobs_are_shown() -> None:
    assert {module for _, _, module in SHOWN} == {tables, console}
    assert len(SHOWN) > 5


@pytest.mark.parametrize(
    ("page", "line", "module"), SHOWN, ids=[f"{page}:{line[:30]}" for page, line, _ in SHOWN]
)
def test_line_has_the_words_of_its_program(page: str, line: str, module: ModuleType) -> None:
    del page
    assert unknown_words(line, module) == []


def test_an_old_word_is_caught() -> None:
    assert unknown_words("language  dropped", tables) == ["dropped"]
    assert unknown_words("step 10/490  luck 0.5", console) == ["luck"]


def quoted_messages() -> list[str]:
    """The messages that the troubleshooting page quotes as symptoms."""
    text = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    return [quote for line in text.splitlines() for quote in re.findall(r'"([^"]+)"', line.split(" | ")[0])]


@pytest.mark.parametrize("quote", quoted_messages())
def test_quoted_message_is_one_of_the_code(quote: str) -> None:
    packages = ("bertmill", "cluster", "pipeline", "schemas", "trainer")
    # Messages may be split over lines, and N replaces any number.
    sources = [path.read_text(encoding="utf-8") for name in packages for path in ROOT.glob(f"{name}/**/*.py")]
    joined = "\n".join(re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)
    pattern = re.escape(quote).replace("N", r"\{[^}]*\}")
    assert re.search(pattern, joined), quote
