"""Tests that JSON Lines and Parquet give the same rows for any units, and that errors give the location."""

import gzip
import json
import random
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import SourceFile
from pipeline.sources.jsonl import RowsReader
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from pipeline.sources.rows import read_rows
from schemas.errors import ConfigError, InputError, StorageError
from tests.pipeline.sources.dumps import LTG


def _read(path: Path, unit_bytes: int = 1 << 20, kind: str = "jsonl", lang: str | None = None) -> list[Any]:
    source = Source(name="rows", kind=kind, paths=["x"], lang=lang)
    reader = RowsReader(Extraction().model_copy(update={"unit_bytes": unit_bytes}))
    units = reader.plan_file(source, SourceFile(str(path), path.name))
    return [document for unit in units for document in reader.read(unit)]


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


RECORDS: list[dict[str, Any]] = [
    {"id": number, "lang": "sv", "title": f"T{number}", "text": f"Text {number}\nåäö"} for number in range(50)
]


@pytest.mark.parametrize("unit_bytes", [1, 100, 1 << 20])
def test_rows_do_not_depend_on_the_units(tmp_path: Path, unit_bytes: int) -> None:
    documents = _read(_write(tmp_path / "a.jsonl", RECORDS), unit_bytes)
    assert documents == [
        RawDocument(
            f"a.jsonl:{r['id']}", 0, r["title"], r["lang"], r["text"], "plain", source_id=str(r["id"])
        )
        for r in RECORDS
    ]


def test_compressed_rows_and_rows_without_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\r\n\n{"text": "b"}'))
    documents = _read(path, lang="en")
    assert [(document.page_id, document.body) for document in documents] == [
        ("a.jsonl.gz:0", "a"),
        ("a.jsonl.gz:16", "b"),
    ]
    assert {(document.source_id, document.url) for document in documents} == {(None, None)}


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
    assert [document.source_id for document in documents] == [str(n) for n in range(10)]
    given = _read(path, kind="wikipedia_parquet", lang="nds-nl")
    assert {document.url for document in [*documents, *given]} == {url}
    other = path.rename(tmp_path / "part.parquet")
    assert _read(other, kind="wikipedia_parquet")[0].lang == "nds-nl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "a", "lang": "en"}\n{"text": "b", "la', "byte 28: not JSON (truncated file?)"),
        ('{"text": "a", "lang": "en"}\n[1]\n', "byte 28: expected a JSON object, got list"),
        ('{"lang": "en"}\n', "byte 0: no text field 'text'"),
        ('{"text": 3, "lang": "en"}\n', "byte 0: field 'text' holds a number"),
        ('{"text": ["a"], "lang": "en"}\n', "byte 0: field 'text' holds an array; expected text"),
        ('{"text": {"a": "b"}, "lang": "en"}\n', "byte 0: field 'text' holds an object"),
        ('{"text": "a", "lang": "en"}\n{"text": true}\n', "byte 28: field 'text' holds a boolean"),
        ('{"text": "a", "lang": ["en"]}\n', "byte 0: field 'lang' holds an array; expected text"),
        ('{"text": "a", "lang": "en", "title": 1.5}\n', "field 'title' holds a number; expected text"),
        ('{"text": "a", "lang": "en", "id": {}}\n', "'id' holds an object; expected text or a whole number"),
        ('{"text": "a"}\n', "row at 0: no language; set `lang`"),
        ('{"text": "a", "url": "http://[x"}\n', "row at 0: no language; set `lang`"),
        (
            '{"text": "a", "lang": "en", "revision": 9223372036854775808}\n',
            "row at 0: revision 922337203",
        ),
        (
            '{"text": "a", "lang": "en", "revid": "' + "9" * 5000 + '"}\n',
            "row at 0: revision 9999999999999999999999999999999999999999 is larger than 9223372036854775807",
        ),
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


def test_invalid_utf_8_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "lang": "en"}\n{"text": "caf\xe9", "lang": "en"}\n')
    with pytest.raises(InputError, match="byte 41: not UTF-8 text"):
        _read(path)


def test_names_that_are_no_unicode_are_stored_as_the_file_spells_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = "The old pier stands far from the water. " * 8
    path.write_text(
        f'{{"text": "{text}", "id": "\\ud800", "title": "T\\udfff", "url": "x:\\ud800", "revision": "²"}}'
    )
    source = Source(name="rows", kind="jsonl", lang="en", paths=[str(path)])
    config = BuildConfig(output="out", sources=[source])
    (unit,) = plan_units(config)
    (row,) = (row for batch in extract_unit(unit, config, Funnel()) for row in batch.to_pylist())
    assert row["key"] == "rows/en/a.jsonl:\\ud800/0"
    assert (row["source_id"], row["title"], row["url"]) == ("\\ud800", "T\\udfff", "x:\\ud800")


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


def test_a_parquet_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "en.parquet"
    texts = [random.Random(number).randbytes(600).hex() for number in range(4000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1000)
    source = Source(name="rows", kind="jsonl", lang="en", paths=[str(path)])
    (unit,) = plan_units(BuildConfig(output="out", sources=[source]))
    rows = read_rows(unit)
    next(rows)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(InputError, match=r"en\.parquet: row group [0-3] is damaged, or the file changed: ."):
        list(rows)


def test_datasets_of_the_hub_are_streamed_by_shard(tmp_path: Path) -> None:
    _hub_folder(tmp_path, ["20231101.ltg", "20231101.nds-nl"], files=3)
    path = f"datasets://{tmp_path}?name=20231101.nds-nl"
    source = Source(name="wiki", kind="wikipedia_parquet", paths=[path])
    config = BuildConfig(output="out", sources=[source])
    units = plan_units(config)
    assert [(unit.start, unit.end, unit.lang) for unit in units] == [(n, n + 1, "nds-nl") for n in range(3)]
    documents = [
        document for unit in units for part in unit.ranges for document in read_unit(part, Extraction())
    ]
    assert [document.page_id for document in documents] == [
        f"{file}{row}" for file in range(3) for row in range(4)
    ]
    assert isinstance(documents[0], RawDocument)
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
    tmp_path: Path, address: str, error: type[Exception], message: str
) -> None:
    _hub_folder(tmp_path, ["20231101.ltg"], files=1)
    path = "datasets://" + address.format(folder=tmp_path)
    source = Source(name="wiki", kind="wikipedia_parquet", paths=[path])
    with pytest.raises(error, match=message) as caught:
        plan_units(BuildConfig(output="out", sources=[source]))
    assert str(caught.value).startswith(path)


def test_ids_of_two_files_stay_distinct(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        _write(tmp_path / name, RECORDS)
    config = BuildConfig(output="out", sources=[Source(name="rows", kind="jsonl", paths=[str(tmp_path)])])
    ids = [
        document.page_id
        for unit in plan_units(config)
        for part in unit.ranges
        for document in read_unit(part, Extraction())
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


def _parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


_TEXTS = pa.array(["One.", "Two."])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": pa.array([b"One."])}, "column 'text' holds binary; expected text"),
        ({"text": pa.array([["One."]])}, r"column 'text' holds list<.*string.*>; expected text"),
        ({"text": pa.array([1])}, "column 'text' holds int64; expected text"),
        ({"text": pa.array([{"a": "One."}])}, r"column 'text' holds struct<a: string>; expected text"),
        ({"text": pa.array([True])}, "column 'text' holds bool; expected text"),
        (
            {"text": pa.array([b"x"]).dictionary_encode()},
            "column 'text' holds dictionary<.*binary.*>; expected",
        ),
        ({"text": _TEXTS, "id": pa.array([1.5, 2.5])}, "'id' holds double; expected text or a whole number"),
        ({"text": _TEXTS, "title": pa.array([["a"], ["b"]])}, "column 'title' holds list<.*>; expected text"),
        ({"text": _TEXTS, "lang": pa.array([1, 2])}, "column 'lang' holds int64; expected text"),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_its_file(
    tmp_path: Path, columns: dict[str, pa.Array], message: str
) -> None:
    path = _parquet(tmp_path / "a.parquet", **columns)
    with pytest.raises(
        InputError, match=rf"a\.parquet: {message}" if message[0] == "c" else message
    ) as caught:
        _read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "texts",
    [
        _TEXTS,
        _TEXTS.cast(pa.large_string()),
        _TEXTS.dictionary_encode(),
        pa.array(["One.", "Two."], pa.string_view()),
    ],
)
def test_text_columns_of_every_encoding_are_read(tmp_path: Path, texts: pa.Array) -> None:
    path = _parquet(tmp_path / "a.parquet", text=texts, id=pa.array([7, 8], pa.int32()))
    assert [(document.page_id, document.body) for document in _read(path, lang="en")] == [
        ("a.parquet:7", "One."),
        ("a.parquet:8", "Two."),
    ]


def test_columns_of_a_language_that_the_config_gives_may_hold_anything(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "a.parquet", text=_TEXTS, lang=pa.array([1, 2]), url=pa.array([["a"], []]))
    assert len(_read(path, lang="en")) == 2


def test_null_text_is_counted_as_empty_in_every_format(tmp_path: Path) -> None:
    rows = _write(tmp_path / "a.jsonl", [{"text": None, "lang": "en"}, {"text": "", "lang": "en"}])
    columns = _parquet(tmp_path / "a.parquet", text=pa.array([None, ""], pa.string()))
    nothing = _parquet(tmp_path / "b.parquet", text=pa.nulls(2))
    for path in (rows, columns, nothing):
        assert [skip.reason for skip in _read(path, lang="en")] == ["empty", "empty"]


def test_wrapped_rows_are_joined_like_wrapped_files(tmp_path: Path) -> None:
    line = "The lines of this book were wrapped at a column of some sixty"
    wrapped = "\n\n".join("\n".join([line] * 6) for _ in range(3))
    joined = "\n".join(" ".join([line] * 6) for _ in range(3))
    path = _write(tmp_path / "a.jsonl", [{"text": wrapped}, {"text": "A verse\nof two lines"}])
    assert [document.body for document in _read(path, lang="en")] == [joined, "A verse\nof two lines"]
