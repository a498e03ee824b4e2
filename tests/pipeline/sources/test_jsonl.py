"""JSON Lines and Parquet rows: the same for any units, and damage by its place."""

import gzip
import json
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.extract import extract_unit
from pipeline.funnel import Funnel
from pipeline.plan import plan_units
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.jsonl import read_row_documents
from pipeline.sources.plain_plan import plan_plain_file
from pipeline.sources.reader import read_unit
from schemas.errors import ConfigError, InputError, StorageError
from tests.pipeline.sources.dumps import LTG


def _read(path: Path, unit_bytes: int = 1 << 20, kind: str = "jsonl", lang: str | None = None) -> list:
    source = Source(name="rows", kind=kind, paths=["x"], lang=lang)
    units = plan_plain_file(source, str(path), path.name, unit_bytes)
    return [document for unit in units for document in read_row_documents(unit)]


def _write(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


RECORDS = [
    {"id": number, "lang": "sv", "title": f"T{number}", "text": f"Text {number}\nåäö"} for number in range(50)
]


@pytest.mark.parametrize("unit_bytes", [1, 100, 1 << 20])
def test_rows_do_not_depend_on_the_units(tmp_path: Path, unit_bytes: int) -> None:
    documents = _read(_write(tmp_path / "a.jsonl", RECORDS), unit_bytes)
    assert documents == [
        RawDocument(f"a.jsonl:{r['id']}", 0, r["title"], r["lang"], r["text"], "plain") for r in RECORDS
    ]


def test_compressed_rows_and_rows_without_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\r\n\n{"text": "b"}'))
    documents = _read(path, lang="en")
    assert [(document.page_id, document.body) for document in documents] == [
        ("a.jsonl.gz:0", "a"),
        ("a.jsonl.gz:16", "b"),
    ]


def test_the_layout_of_published_wikipedia_extracts(tmp_path: Path) -> None:
    folder = tmp_path / "20231101.nds-nl"
    folder.mkdir()
    path = folder / "train-00000-of-00001.parquet"
    url = "https://nds-nl.wikipedia.org/wiki/A"
    rows = [{"id": str(n), "url": url, "title": f"T{n}", "text": f"One.\n\nTwo {n}."} for n in range(10)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    documents = _read(path, unit_bytes=300, kind="wikipedia_parquet")
    assert [document.page_id for document in documents] == [str(n) for n in range(10)]
    assert {document.lang for document in documents} == {"nds-nl"}
    assert {document.revision for document in documents} == {20231101}
    other = path.rename(tmp_path / "part.parquet")
    assert _read(other, kind="wikipedia_parquet")[0].lang == "nds-nl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "a", "lang": "en"}\n{"text": "b", "la', "byte 28: not JSON (a cut file?)"),
        ('{"text": "a", "lang": "en"}\n[1]\n', "byte 28: expected a JSON object, got list"),
        ('{"lang": "en"}\n', "byte 0: no text field 'text'"),
        ('{"text": 3, "lang": "en"}\n', "byte 0: no text field 'text'"),
        ('{"text": "a"}\n', "row at 0: no language; set `lang`"),
        ("", "empty file"),
        ("<!doctype html><p>not found", "an HTML page"),
    ],
)
def test_damaged_rows_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"a\.jsonl") as caught:
        _read(path)
    assert message in str(caught.value)


def test_text_that_is_no_utf_8_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "lang": "en"}\n{"text": "caf\xe9", "lang": "en"}\n')
    with pytest.raises(InputError, match="byte 41: not UTF-8 text"):
        _read(path)


def test_empty_rows_are_counted_skips(tmp_path: Path) -> None:
    (skip,) = _read(_write(tmp_path / "a.jsonl", [{"text": "", "id": 5, "lang": "en"}]))
    assert skip == Skip("a.jsonl:5", "", "en", "empty")


def test_a_parquet_file_that_is_cut_or_lacks_the_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(InputError, match=r"a\.parquet: no column 'text'; it has body"):
        _read(path, kind="wikipedia_parquet")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match=r"a\.parquet: read as Parquet"):
        _read(path, kind="wikipedia_parquet")
    path.write_text("no parquet")
    with pytest.raises(InputError, match=r"a\.parquet: not a Parquet file"):
        _read(path, kind="wikipedia_parquet")


def _hub_folder(folder: Path, names: list[str], files: int) -> None:
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*.parquet\n"
        for name in names
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for name in names:
        (folder / name).mkdir()
        for number in range(files):
            rows = [
                {"id": f"{number}{row}", "url": "u", "title": "T", "text": f"Text {row}."} for row in range(4)
            ]
            path = folder / name / f"train-{number:05d}-of-{files:05d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), path)


def test_datasets_of_the_hub_are_streamed_by_shard(tmp_path: Path) -> None:
    _hub_folder(tmp_path, ["20231101.ltg", "20231101.nds-nl"], files=3)
    path = f"datasets://{tmp_path}?name=20231101.nds-nl"
    source = Source(name="wiki", kind="wikipedia_parquet", paths=[path])
    config = BuildConfig(output="out", sources=[source])
    units = plan_units(config)
    assert [(unit.start, unit.end, unit.lang) for unit in units] == [(n, n + 1, "nds-nl") for n in range(3)]
    documents = [document for unit in units for part in unit.ranges for document in read_unit(part, 10**6)]
    assert [document.page_id for document in documents] == [
        f"{file}{row}" for file in range(3) for row in range(4)
    ]
    assert documents[0].body == "Text 0."


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("{folder}?name=nope", InputError, "cannot be loaded: .*'nope' not found"),
        ("{folder}?name=20231101.ltg&split=nope", InputError, "cannot be loaded: .*Bad split"),
        ("{folder}/nothing", InputError, "cannot be loaded"),
        ("{folder}?nmae=x", ConfigError, "expected datasets://"),
    ],
)
def test_a_dataset_that_cannot_be_loaded_is_refused_by_its_address(
    tmp_path: Path, address, error, message
) -> None:
    _hub_folder(tmp_path, ["20231101.ltg"], files=1)
    path = "datasets://" + address.format(folder=tmp_path)
    source = Source(name="wiki", kind="wikipedia_parquet", paths=[path])
    with pytest.raises(error, match=message) as caught:
        plan_units(BuildConfig(output="out", sources=[source]))
    assert str(caught.value).startswith(path)


def test_ids_of_two_files_are_not_taken_for_the_same_row(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        _write(tmp_path / name, RECORDS)
    config = BuildConfig(output="out", sources=[Source(name="rows", kind="jsonl", paths=[str(tmp_path)])])
    ids = [
        document.page_id
        for unit in plan_units(config)
        for part in unit.ranges
        for document in read_unit(part, 10**6)
    ]
    assert len(set(ids)) == len(ids) == 2 * len(RECORDS)


def test_real_text_in_the_published_layout_keeps_its_sentences(tmp_path: Path) -> None:
    config = BuildConfig(output="out", sources=[Source(name="wiki", kind="wikimedia", paths=[str(LTG)])])
    wanted = _sentences_of(config)
    rows = [
        {
            "id": page_id,
            "url": f"https://ltg.wikipedia.org/wiki/{title}",
            "title": title,
            "text": "\n\n".join(" ".join(paragraph) for paragraph in paragraphs),
        }
        for page_id, (title, paragraphs) in wanted.items()
    ]
    folder = tmp_path / "20231101.ltg"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet", row_group_size=100)
    source = Source(name="wiki", kind="wikipedia_parquet", paths=[str(folder)])
    found = _sentences_of(
        BuildConfig(output="out", sources=[source], extraction=Extraction(unit_bytes=1 << 16))
    )
    assert found.keys() == wanted.keys()
    same = sum(found[page_id] == wanted[page_id] for page_id in wanted)
    assert same > 0.99 * len(wanted)


def _sentences_of(config: BuildConfig) -> dict[str, tuple[str, list[list[str]]]]:
    documents = {}
    for unit in plan_units(config):
        for batch in extract_unit(unit, config, Funnel()):
            for row in batch.to_pylist():
                ends = list(accumulate(row["paragraph_sentences"], initial=0))
                paragraphs = [row["sentences"][start:end] for start, end in pairwise(ends)]
                documents[row["page_id"]] = (row["title"], paragraphs)
    return documents
