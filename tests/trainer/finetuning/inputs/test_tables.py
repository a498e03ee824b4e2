"""Tables in common formats: each gives the same examples, and each mistake one line with its row."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import BertmillError, InputError
from tests.trainer.finetuning.test_run import config, words
from trainer.finetuning.inputs.examples import Columns, TextExample
from trainer.finetuning.inputs.sentences import read_table
from trainer.finetuning.run import finetune

TEXTS = ['He said "no", twice.', "two\nlines", "ein Satz", "#4\tübrig"]
COLUMNS = Columns("text", None, "label")


def write(path: Path, labels: list[Any]) -> str:
    """The texts with ``labels`` in the format of the path's suffix."""
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    lines = [json.dumps(row) for row in rows]
    if path.name.endswith(".csv"):
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([("text", "label"), *((row["text"], row["label"]) for row in rows)])
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    elif path.name == "data.json":
        path.write_text(json.dumps({"version": 1, "data": rows}))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\ufeff" + "\n\n".join(lines) + "\n")
    return str(path)


def read(uri: str, columns: Columns = COLUMNS) -> list[TextExample]:
    return list(read_table([uri], columns))


NAMES = ["a.csv", "a.json", "data.json", "a.jsonl", "a.ndjson", "a.jsonl.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("labels", "spelled"),
    [([1, 0, 1, 0], "1010"), ([1.0, 0.0, 1.0, 0.0], "1010"), (["b", "a", "b", "a"], "baba")],
)
def test_every_format_gives_the_same_examples(
    name: str, labels: list[Any], spelled: str, tmp_path: Path
) -> None:
    found = read(write(tmp_path / name, labels))
    assert [one.text for one in found] == TEXTS
    # CSV has no types, so its labels are the written texts.
    assert [one.label.removesuffix(".0") for one in found] == list(spelled)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_booleans_and_numbers_are_labels(name: str, tmp_path: Path) -> None:
    found = read(write(tmp_path / name, [True, False, True, False]))
    assert [one.label for one in found] == ["true", "false", "true", "false"]


@pytest.mark.parametrize(
    ("name", "place"),
    [("a.csv", ":5"), ("a.jsonl", ":5"), ("a.json", ": row 3"), ("a.parquet", ": row 3")],
)
def test_a_missing_label_is_named_by_its_row(name: str, place: str, tmp_path: Path) -> None:
    uri = write(tmp_path / name, [1, 0, None, 0])
    with pytest.raises(InputError) as raised:
        read(uri)
    assert str(raised.value) == f"{uri}{place}: has no label"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'text,label\n"a" b,1\n', r"a\.csv:2: not CSV: ',' expected after '\"'"),
        ("a.csv", 'text,label\na,1\n"b,1\n', r"a\.csv:3: not CSV: unexpected end of data"),
        ("a.csv", "text,label,label\na,1,2\n", r"a\.csv:1: column 'label' occurs 2 times"),
        ("a.tsv", "text\ttext\tlabel\na\tb\t1\n", r"a\.tsv:1: column 'text' occurs 2 times"),
        ("a.csv", "text,label\na\n", r"a\.csv:2: 1 fields are too few"),
        ("a.csv", "", r"a\.csv:1: the file is empty"),
        ("a.tsv", "text\tlabel\na\t \n", r"a\.tsv:2: has no label"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[3]\n', r"a\.jsonl:2: must be a JSON object, got \[3\]"),
        ("a.jsonl", '{"text": null, "label": 1}\n', r"a\.jsonl:1: column 'text' must be a text, got None"),
        ("a.jsonl", '{"label": 1}\n', r"a\.jsonl:1: no column 'text'; the columns are label"),
        ("a.jsonl", "", r"a\.jsonl: contains no example"),
        ("a.json", "[1", r"a\.json: not JSON"),
        ("a.parquet", "PAR", r"a\.parquet: read as Parquet"),
    ],
)
def test_mistakes_are_one_line(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BertmillError, match=message) as raised:
        read(str(tmp_path / name))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_missing_file_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}: no such file"):
        read(str(tmp_path / name))


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset with two splits and named classes, in the layout of the Hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    folder = tmp_path / "hub"
    (folder / "data").mkdir(parents=True)
    for split, labels in (("train", [1, 0, 1, 0]), ("test", [1, 0, -1, 0])):
        made = datasets.Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)
        made.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_a_folder_in_the_layout_of_the_hub(hub_folder: str) -> None:
    found = read(f"{hub_folder}?split=train")
    assert [(one.text, one.label) for one in found] == list(zip(TEXTS, ["good", "bad"] * 2, strict=True))
    assert read(f"datasets://{hub_folder}?split=train")[0].label == "good"
    with pytest.raises(InputError, match=r"hub\?split=test: row 3: has no label"):
        read(f"{hub_folder}?split=test")
    with pytest.raises(InputError, match=r"has the splits train, test; choose one, as in .*\?split=train"):
        read(hub_folder)
    with pytest.raises(InputError, match="unknown option 'part'"):
        read(f"{hub_folder}?part=train")
    with pytest.raises(InputError, match="cannot be loaded"):
        read(f"datasets://{hub_folder}/none?split=train")


def test_a_task_is_trained_on_mixed_formats(pretrained: str, tmp_path: Path) -> None:
    rows = [{"s": " ".join(row), "y": "cat" in row} for row in words(64, 1)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pq.write_table(pa.Table.from_pylist(rows[:16]), tmp_path / "dev.parquet")
    files = {
        "train": [str(tmp_path / "train.jsonl")], "validation": [str(tmp_path / "dev.parquet")],
        "text": "s", "label": "y",
    }  # fmt: skip
    report = finetune(config(pretrained, tmp_path, "classification", files, epochs=1))
    assert report.examples == {"train": 64, "validation": 16}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text;label\na;b\n", r"a.csv:1: no comma in the header"),
        ("a.csv", "text\tlabel\na\tb\n", r"a.csv:1: no comma in the header"),
        ("a.xlsx", "PK", r"a.xlsx: .xlsx files are not read; save the table as CSV"),
        (
            "a.jsonl",
            '{"text": "a", "label": [1]}',
            r"a.jsonl:1: a label must be .*, got \[1\]",
        ),
        ("a.jsonl", '{"text": "a", "label": {"x": 1}}', r"a.jsonl:1: a label must be a text or a number"),
    ],
)
def test_what_is_no_table_of_labels_is_one_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        list(read_table([str(path)], Columns("text", None, "label")))


def test_long_fields_several_marks_and_a_single_object_are_read(tmp_path: Path) -> None:
    long = "a" * 200_000
    (tmp_path / "a.csv").write_text(f"\ufeff\ufefftext,label\n{long},1\n")
    (tmp_path / "b.json").write_text('{"text": "b", "label": 1, "tokens": ["x", "y"]}')
    files = [str(tmp_path / name) for name in ("a.csv", "b.json")]
    found = [(row.text, row.label) for row in read_table(files, Columns("text", None, "label"))]
    assert found == [(long, "1"), ("b", "1")]
