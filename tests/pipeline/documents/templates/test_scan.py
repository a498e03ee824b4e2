"""Tests the scan of a dump's units for templates, and the table made from it."""

import io
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.templates import tables
from pipeline.documents.templates.pages import TemplatePages
from pipeline.documents.templates.scan import scan_unit
from pipeline.documents.templates.tables import describe, learn_wiki, table_of_rows, table_rows
from pipeline.sources.mediawiki.dumps import plan_dump
from pipeline.sources.units import Unit
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_analysis import Analysis
from pipeline.wikitext.templates.transclusion import Included
from schemas.columns.templates import SCANNED
from schemas.errors import InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, LTG, page

SITE = SiteInfo("en", "enwiki")
TEMPLATE = 10


def units(path: Path, unit_bytes: int = 1 << 30) -> list[Unit]:
    return plan_dump(source="s", uri=str(path), name=path.name, unit_bytes=unit_bytes)


def learn(planned: list[Unit], site: SiteInfo = SITE) -> tuple[Analysis, Counter[str]]:
    counts: Counter[str] = Counter()
    found = [
        pa.Table.from_batches([batch]) for unit in planned for batch in scan_unit(unit, 4_000_000, counts)
    ]
    return learn_wiki(found, site), counts


def dump(folder: Path, *pages: str) -> Path:
    path = folder / "enwiki.xml"
    path.write_text(HEAD + "".join(pages) + FOOT)
    return path


def test_pages_uses_and_redirects_become_a_table(tmp_path: Path) -> None:
    path = dump(
        tmp_path,
        page(
            1,
            "{{nowrap|a}} {{Nbs}} {{nbs}} {{#if:x|y}} {{lc:A}} {{template:km|3}} {{gone}} &lt;ref>x&lt;/ref>",
        ),
        page(2, "#REDIRECT [[Page 1]] {{km|7}}"),
        page(3, "{{{1}}}&lt;noinclude>{{doc}}&lt;/noinclude>", title="Template:Nowrap", ns=TEMPLATE),
        page(4, "&amp;nbsp;", title="Template:Nbsp", ns=TEMPLATE),
        page(5, "#REDIRECT [[Template:nbsp]]", title="Template:Nbs", ns=TEMPLATE),
        page(6, "{{{1}}} km", title="Template:Km", ns=TEMPLATE),
        page(7, "never used", title="Template:Other", ns=TEMPLATE),
        page(8, "return {}", title="Module:Other", ns=828),
    )
    analysis, counts = learn(units(path))
    assert {name: (entry.kind, entry.uses) for name, entry in analysis.table.entries.items()} == {
        "Km": ("value", 1), "Nbsp": ("value", 2), "Nowrap": ("text", 1),
    }  # fmt: skip
    assert analysis.table.aliases == {"Nbs": "Nbsp"}
    assert analysis.counts["missing"] == 1
    assert (counts["templates"], counts["modules"], counts["pages"]) == (5, 1, 8)


def test_a_stub_dump_is_refused(tmp_path: Path) -> None:
    stub = page(1).replace("Some text.", "")
    stub = re.sub(r"<text[^>]*></text>", '<text bytes="10" location="tt:7" id="7" />', stub)
    with pytest.raises(InputError, match=r"enwiki\.xml: a stub dump"):
        learn(units(dump(tmp_path, stub)))


def test_of_two_copies_of_a_template_the_newer_one_counts(tmp_path: Path) -> None:
    old = page(3, "{{{1}}} old", title="Template:X", ns=TEMPLATE)
    new = page(3, "{{{1}}} new", title="Template:X", ns=TEMPLATE).replace("<id>30</id>", "<id>31</id>")
    for copies in ((old, new), (new, old)):
        analysis, _ = learn(units(dump(tmp_path, page(1, "{{x}}"), *copies)))
        assert analysis.table.entries["X"].body == "{{{1}}} new"


def test_the_table_of_a_real_wiki_is_the_same_however_it_is_cut_and_can_be_read_again() -> None:
    site = SiteInfo("ltg", "ltgwiki", dict(units(LTG)[0].site_namespaces))
    whole, counts = learn(units(LTG), site)
    cut, _ = learn(units(LTG, 100_000)[::-1], site)
    rows = table_rows(whole.table)
    assert rows.equals(table_rows(cut.table))
    assert whole.counts == cut.counts
    assert whole.table.back_matter == cut.table.back_matter
    assert table_rows(table_of_rows(rows, whole.table.back_matter)).equals(rows)
    assert counts["templates"] == 347
    assert whole.table.entries["Infoskreine Latvejis mīsts"].kind == "box"
    assert whole.table.entries["Vol-de"].arguments == ("1",)
    assert "nūruodis" in whole.table.back_matter
    lines = list(describe(whole.table, whole.counts))
    assert any("navigation" in line and "Europys vaļsteibys" in line for line in lines)


def test_a_template_namespace_that_is_cut_off_is_counted_and_bounded(tmp_path: Path) -> None:
    """As in a part file of a large wiki, where a template calls one from another file."""
    pages = [page(1, "{{a|x}} {{b}}"), page(2, "{{c|{{{1}}}}}", title="Template:A", ns=TEMPLATE)]
    analysis, _ = learn(units(dump(tmp_path, *pages)))
    assert analysis.counts["missing"] == 1
    assert analysis.table.entries["A"].kind == "unknown"


@pytest.mark.parametrize("text", ["{{a|" * 25_000, "x" * 4_000_000, "{{self}}", "&lt;nowiki>" * 20_000])
def test_hostile_templates_are_counted_and_never_fail(tmp_path: Path, text: str) -> None:
    path = dump(tmp_path, page(1, "{{self}}"), page(2, text, title="Template:Self", ns=TEMPLATE))
    analysis, counts = learn(units(path))
    assert counts["templates"] == 1
    assert analysis.table.entries["Self"].shown in (None, "") or analysis.table.entries["Self"].body


def test_headings_over_lists_of_links_at_the_end_are_learned(tmp_path: Path) -> None:
    text = "Text.\n== Life ==\n* [[A]]\n== Work ==\nProse of it.\n== Voir là ==\n* [[B]]\n* [http://x.org C]"
    path = dump(tmp_path, *(page(number, text) for number in range(1, 7)))
    analysis, _ = learn(units(path))
    assert analysis.table.back_matter == {"voir là"}
    rare = dump(tmp_path, *(page(number, text) for number in range(1, 3)))
    assert learn(units(rare))[0].table.back_matter == frozenset()


def test_a_unit_of_several_wikis_keeps_them_apart(tmp_path: Path) -> None:
    (one,) = units(dump(tmp_path, page(1, "{{a}}"), page(2, "x", title="Template:A", ns=TEMPLATE)))
    other = replace(one, dbname="dewiki", lang="de")
    rows = pa.Table.from_batches(scan_unit(replace(one, merged_files=(other,)), 4_000_000, Counter()))
    assert sorted(set(rows["wiki"].to_pylist())) == ["dewiki", "enwiki"]


@pytest.mark.parametrize("slots", [1, 3, 1 << 24])
@pytest.mark.parametrize("pending", [0, 2, 1 << 20])
def test_names_in_any_number_of_tables_add_up(
    monkeypatch: pytest.MonkeyPatch, pending: int, slots: int
) -> None:
    monkeypatch.setattr(tables, "_PENDING_ROWS", pending)
    # With few slots, headings share one, and the rare one passes the first filter.
    monkeypatch.setattr(tables, "_SLOTS", slots)
    # Name -> sections and listed ones. Four of five are just enough, and so are five sections.
    headings = {"See also": (40, 40), "Just": (20, 16), "Below": (20, 15), "Rare": (4, 4), "Text": (20, 0)}

    def rows(part: int, parts: int) -> pa.Table:
        records = [
            {
                "what": "heading",
                "name": name,
                "count": count // parts,
                "listed": share(listed, part, parts),
            }
            for name, (count, listed) in headings.items()
        ]
        records.append({"what": "use", "name": "X", "count": part, "listed": 0})
        records.append({"what": "template", "name": "X", "count": 0, "listed": 0})
        constant = {"wiki": "w", "revision": part, "body": f"text {part}", "redirect": "", "too_long": False}
        return pa.Table.from_pylist([constant | record for record in records], SCANNED)

    found = [rows(part, 4) for part in range(4)]
    analysis = learn_wiki(found, SITE)
    assert analysis.table.back_matter == {"See also", "Just"}
    assert analysis.table.entries["X"].uses == 6
    assert analysis.table.entries["X"].body == "text 3"


def share(total: int, part: int, parts: int) -> int:
    """The share of ``total`` in a part, so that the parts add up to it."""
    return total // parts + (1 if part < total % parts else 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["A", "B", "C"]),
            st.integers(1, 3),
            st.builds(Included, st.text(max_size=3), st.sampled_from(["", "A", "B"]), st.booleans()),
        )
    )
)
def test_pages_in_a_file_are_those_of_a_dictionary(copies: list[tuple[str, int, Included]]) -> None:
    expected: dict[str, tuple[int, str, str, bool]] = {}
    with io.BytesIO() as file:
        pages = TemplatePages(file)
        for name, revision, page in copies:
            pages.add(name, revision, page)
            copy = (revision, page.body, page.redirect, page.too_long)
            expected[name] = max(copy, expected.get(name, copy))
        assert dict(pages) == {name: Included(*copy[1:]) for name, copy in expected.items()}
        assert all(name in pages for name in expected)
        assert len(pages) == len(expected)
