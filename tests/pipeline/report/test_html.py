"""Tests the content of the HTML report of a build, and that a browser renders all of it."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.progress import Progress, recorded
from pipeline.report.html import html_report
from schemas.instance_counts import InstanceCounts
from tests.pipeline.report.example import LANGUAGES, example
from tests.support.waiting import HANG_SECONDS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

# Makes the browser report what it fetched, and what lies outside its chart or the page.
MEASURE = """<script>
addEventListener('load', () => {
  const outside = [], found = {svg: 0, text: 0};
  for (const svg of document.querySelectorAll('svg')) {
    found.svg++;
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('text')];
    const boxes = labels.map(label => label.getBoundingClientRect());
    labels.forEach((label, i) => {
      found.text++;
      const b = boxes[i];
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 ||
          b.bottom > frame.bottom + 1) outside.push(label.textContent);
      for (let j = 0; j < i; j++)
        if (b.left < boxes[j].right + 4 && boxes[j].left < b.right + 4 &&
            b.top < boxes[j].bottom - 4 && boxes[j].top < b.bottom - 4)
          outside.push(labels[j].textContent + ' over ' + label.textContent);
    });
  }
  const place = document.createElement('output');
  place.textContent = JSON.stringify({...found, outside, wide: document.documentElement.scrollWidth,
    tall: document.documentElement.scrollHeight,
    fetched: performance.getEntriesByType('resource').map(entry => entry.name)});
  document.body.append(place);
});
</script>"""


class Anchors(HTMLParser):
    """Link targets within the page, ids, and every attribute that could name another file."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.ids: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name == "href" and (value or "").startswith("#"):
                self.targets.add((value or "")[1:])
            elif name in ("src", "href", "srcset", "data", "action"):
                self.outside.append(f"{tag} {name}={value}")


def page_of(languages: list[str], times: list[Progress] | None = None) -> str:
    return html_report(*example(languages), times or [])


def test_links_lead_to_sections_and_nothing_leads_out() -> None:
    found = Anchors()
    page = page_of(LANGUAGES)
    found.feed(page)
    assert found.outside == []
    assert found.targets == found.ids
    assert len(found.ids) >= 10
    assert "http" not in page
    assert "<w>" not in page


def test_every_language_is_in_the_table_and_odd_ones_are_warned_of() -> None:
    page = page_of(LANGUAGES)
    table = page[page.index(">Languages</h2>") :]
    for lang in LANGUAGES:
        assert f"<td>{lang}</td>" in table
    assert page.count("class=warning") == sum(
        100 * counts.unknown > counts.subwords for counts in example(LANGUAGES)[0].languages.values()
    )


def test_shares_before_and_after_smoothing() -> None:
    manifest, counts = example(["de", "lv"])
    sampled = {"de": {"train_bytes": 9000, "copies": 1.0}, "lv": {"train_bytes": 1000, "copies": 3.0}}
    languages = {lang: manifest.languages[lang].model_copy(update=sampled[lang]) for lang in sampled}
    page = html_report(manifest.model_copy(update={"languages": languages}), counts)
    for share in (
        "de: unchanged: 90.0%",
        "de: smoothed: 75.0%",
        "lv: unchanged: 10.0%",
        "lv: smoothed: 25.0%",
    ):
        assert share in page


def test_pairs_padding_and_left_over_tokens_are_shown() -> None:
    page = unescape(page_of(["de", "fr"]))
    assert "60.0% is next, 40.0% random next" in page
    # 1,000 of 10 * 128 and of 10 * 512 positions are tokens.
    assert "a mean of 100.0 of 128 tokens; 21.9% of the computation saved" in page
    assert "len512: padding saved: 80.5%" in page
    assert "len128: no partner" in page
    assert "len128 (15.0% of its tokens): replaced by [MASK]: 720" in page


def test_a_corpus_without_pairs_or_rows_has_a_page_too() -> None:
    manifest, _ = example(["de"])
    empty = {"len128/train/0": {"de": InstanceCounts()}}
    page = html_report(manifest.model_copy(update={"label_convention": {}}), empty)
    assert "has no sentence pairs" in page


def test_times_are_shown_by_stage_and_only_on_demand() -> None:
    with recorded() as times:
        first = Progress("extract", total=3, skipped=4)
        for _ in range(3):
            first.advance(2e6)
        Progress("instances", total=0, skipped=9)
    Progress("not recorded", total=1).advance(1)
    for progress in times:
        progress.seconds = 3.0 if progress.done else 0.0
    page = page_of(["de"], times)
    assert "Time by stage" in page
    assert "<td>extract</td><td>4</td><td>3</td><td>3.0</td><td>2.00 MB/s</td>" in page
    assert "<td>instances</td><td>9</td><td>0</td><td>0.0</td><td>-</td>" in page
    assert "not recorded" not in page
    assert "Time by stage" not in page_of(["de"])


@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
@pytest.mark.parametrize("languages", [1, 40, len(LANGUAGES)])
def test_a_browser_shows_every_chart_whole(tmp_path: Path, languages: int) -> None:
    with recorded() as times:
        Progress("extract", total=1).advance(2e6)
    measured = shown(page_of(LANGUAGES[-languages:], times), tmp_path)
    assert measured["outside"] == []
    assert measured["fetched"] == []
    assert measured["svg"] >= 12
    assert measured["text"] > 100
    assert measured["wide"] <= 1200
    assert measured["tall"] > 3000


def shown(page: str, folder: Path, width: int = 1200) -> dict[str, Any]:
    """The report of a headless browser about the page in a window of this width."""
    assert BROWSER is not None
    path = folder / "page.html"
    path.write_text(page.replace("</html>", f"{MEASURE}</html>"), encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},2000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    found = re.search(r"<output>(.*?)</output>", done.stdout)
    assert found is not None, done.stderr[-2000:]
    measured: dict[str, Any] = json.loads(unescape(found[1]))
    return measured
