"""Tests the extraction of units: balanced counts, every reason to skip, the same rows for any cut."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.sources.plan import plan_units
from schemas.columns.documents import DOCUMENTS
from schemas.errors import CorpusError
from tests.pipeline.sources.dumps import FOOT, HEAD, LTG, SAMPLE, page


def _config(
    path: Path | str, kind: str = "wikimedia", lang: str | None = None, **extraction: Any
) -> BuildConfig:
    source = Source(name="src", kind=kind, paths=[str(path)], lang=lang)
    return BuildConfig(output="out", sources=[source], extraction=Extraction(**extraction))


def _extract(config: BuildConfig) -> tuple[list[dict[str, Any]], Funnel, list[pa.RecordBatch]]:
    funnel, batches = Funnel(), list[pa.RecordBatch]()
    for unit in plan_units(config):
        batches += extract_unit(unit, config, funnel)
    return [row for batch in batches for row in batch.to_pylist()], funnel, batches


def _wiki(tmp_path: Path, *pages: str) -> Path:
    path = tmp_path / "enwiki.xml"
    path.write_text(HEAD + "".join(pages) + FOOT)
    return path


PROSE = (
    "The old pier stands by the water. It is narrow, and it was built of stone in the year of the flood. " * 3
)


def test_a_page_of_formulas_alone_is_skipped_for_its_own_reason(tmp_path: Path) -> None:
    formulas = "\n\n".join(f"&lt;math>E_{number} = m_{number} c^2&lt;/math>" for number in range(20))
    path = _wiki(tmp_path, page(1, formulas), page(2, f"{PROSE}\n\n{formulas}"))
    rows, funnel, _ = _extract(_config(path))
    assert [row["page_id"] for row in rows] == ["2"]
    assert funnel.languages["en"].skipped == {"formulas": 1}
    assert funnel.languages["en"].text_counts["formula_paragraphs"] == 20
    assert len(_extract(_config(path, math="tex"))[0]) == 2


def test_a_real_wiki_becomes_documents_and_the_counts_balance() -> None:
    rows, funnel, batches = _extract(_config(LTG, unit_bytes=200_000))
    assert all(batch.schema == DOCUMENTS for batch in batches)
    counts = funnel.languages["ltg"]
    assert counts.pages_seen == 2004
    assert counts.kept == len(rows) > 300
    assert counts.skipped["redirect"] > 100
    assert counts.skipped["namespace"] > 300
    assert len({row["key"] for row in rows}) == len(rows)
    for row in rows:
        assert row["key"] == f"src/ltg/{row['page_id']}/{row['revision']}"
        assert sum(row["paragraph_sentences"]) == len(row["sentences"])
        assert min(row["paragraph_sentences"]) > 0
        assert row["text_bytes"] == sum(len(sentence.encode()) for sentence in row["sentences"])
        assert all(sentence.strip() for sentence in row["sentences"])
    assert counts.text_counts["sentences"] == sum(len(row["sentences"]) for row in rows)


def test_rows_do_not_depend_on_how_the_file_is_cut() -> None:
    whole, funnel, _ = _extract(_config(LTG, unit_bytes=1 << 30))
    parts, part_funnel, _ = _extract(_config(LTG, unit_bytes=65536))
    assert parts == whole
    assert part_funnel == funnel


def test_content_hash_looks_through_white_space_only(tmp_path: Path) -> None:
    spaced = PROSE.replace(". ", ".\u00a0\u2028\n \t")
    parted = PROSE.replace(". ", ".\n\n")
    glued = PROSE.replace("old pier", "oldpier", 1)
    bodies = [PROSE, spaced, parted, glued, PROSE + "\n\nZoë naïve 雨。"]
    rows, _, _ = _extract(
        _config(_wiki(tmp_path, *(page(number + 1, body) for number, body in enumerate(bodies))))
    )
    hashes = [row["content_hash"] for row in rows]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len({len(value) for value in hashes}) == 1
    assert len(set(hashes)) == 3
    for row in rows:
        text = " ".join(" ".join(row["sentences"]).split())
        assert row["content_hash"] == hashlib.blake2b(text.encode(), digest_size=16).digest()
        assert row["text_bytes"] == len("".join(row["sentences"]).encode())


def test_every_reason_to_skip_is_counted_by_name(tmp_path: Path) -> None:
    items = "".join(f"* item number {number} of the list\n" for number in range(40))
    pages = [
        page(1, PROSE),
        page(2, "Short."),
        page(3, items),
        page(4, PROSE + "{{disambiguation}}"),
        page(5, "word " * 300),
        page(6, "#REDIRECT [[Pier]]"),
        page(7, PROSE, ns=1, title="Talk:Pier"),
        page(8, ""),
        page(9, "{}").replace("<model>wikitext", "<model>json"),
        page(10, "x").replace("<text ", '<text deleted="deleted" '),
    ]
    rows, funnel, _ = _extract(_config(_wiki(tmp_path, *pages), max_page_chars=1400))
    assert [row["page_id"] for row in rows] == ["1"]
    assert funnel.skipped == {
        "too-short": 1,
        "list-like": 1,
        "disambiguation": 1,
        "too-large": 1,
        "redirect": 1,
        "namespace": 1,
        "empty": 1,
        "content-model": 1,
        "deleted": 1,
    }
    assert (funnel.pages_seen, funnel.kept) == (10, 1)


def test_a_page_that_takes_too_long_is_a_counted_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(wikitext: str) -> float:
        while "forever" in wikitext:
            pass
        return 0.0

    monkeypatch.setattr("pipeline.documents.cleaning.list_share", slow)
    path = _wiki(tmp_path, page(1, PROSE), page(2, PROSE + " This goes on forever."), page(3, PROSE))
    rows, funnel, _ = _extract(_config(path, page_seconds=2.0))
    assert [row["page_id"] for row in rows] == ["1", "3"]
    assert funnel.skipped == {"timeout": 1}


def test_lone_surrogates_in_json_text_are_removed_and_counted(tmp_path: Path) -> None:
    """Case pipeline-031. A whole pair is one character and stays."""
    path = tmp_path / "a.jsonl"
    text = PROSE + " An odd \ud800 character\udfff stands here, and a \ud83d\ude00."
    path.write_text(json.dumps({"id": "1", "lang": "en", "text": text}))
    rows, funnel, batches = _extract(_config(path, kind="jsonl"))
    assert funnel.of("en").text_counts["lone_surrogates"] == 2
    assert "An odd character stands here, and a \U0001f600." in rows[0]["sentences"]
    assert batches[0].schema.field("sentences").type == pa.list_(pa.string())
    assert rows[0]["sentences"][-1].encode("utf-8")


def test_books_and_rows_become_documents() -> None:
    rows, funnel, _ = _extract(_config(SAMPLE / "books" / "pt", kind="bookcorpus", lang="pt"))
    assert [row["page_id"] for row in rows] == ["castro_osorio_sacrificada.txt.gz"]
    assert len(rows[0]["sentences"]) > 500
    assert funnel.kept == 1


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case pipeline-028: every block stays far below two gigabytes, the limit of string offsets."""
    monkeypatch.setattr("pipeline.documents.rows.BATCH_BYTES", 1000)
    rows, _, batches = _extract(_config(_wiki(tmp_path, *(page(number, PROSE) for number in range(1, 30)))))
    assert len(rows) == 29
    assert max(sum(batch["text_bytes"].to_pylist()) for batch in batches) < 2000


def test_funnels_add_up_and_one_that_does_not_balance_is_refused() -> None:
    one, two = Funnel(), Funnel()
    one.keep("en")
    two.skip("en", "empty")
    two.keep("de")
    one.add(two)
    one.check("x")
    adapter = TypeAdapter(Funnel)
    assert adapter.validate_json(adapter.dump_json(one)) == one
    assert (one.pages_seen, one.kept, one.skipped) == (3, 2, {"empty": 1})
    one.of("en").kept += 1
    with pytest.raises(CorpusError, match="x: language en: 2 pages seen, but 2 kept and 1 skipped"):
        one.check("x")
