"""Tags and answers from tables: every format equals the column file, and each mistake gives one line."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import InputError
from tests.trainer.finetuning.test_run import config, words
from trainer.finetuning.inputs.examples import TaggedExample
from trainer.finetuning.inputs.questions import read_squad
from trainer.finetuning.inputs.words import read_conll, read_tagged
from trainer.finetuning.run import finetune

SENTENCES = [(["EU", "rejects", "a call"], ["B-ORG", "O", "O"]), (["'#'", '"x"'], ["O", "B-ORG"])]
NAMES = ["a.csv", "python.csv", "a.json", "a.jsonl", "a.parquet", "classes.parquet", "folder"]
CLASSES = ["B-ORG", "O"]


def write(folder: Path, name: str, sentences: Any = SENTENCES) -> str:
    """The sentences in the format of the suffix of ``name``."""
    path = folder / name
    rows = [{"id": number, "tokens": w, "ner_tags": t} for number, (w, t) in enumerate(sentences)]
    if path.suffix == ".csv":
        spell = str if name == "python.csv" else json.dumps
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["id", "tokens", "ner_tags"])
            table.writerows([row["id"], spell(row["tokens"]), spell(row["ner_tags"])] for row in rows)
    elif name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".json", ".jsonl"):
        lines = [json.dumps(row) for row in rows]
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "\n".join(lines))
    else:
        features = datasets.Features(
            {
                "id": datasets.Value("int64"),
                "tokens": datasets.List(datasets.Value("string")),
                "ner_tags": datasets.List(datasets.ClassLabel(names=CLASSES)),
            }
        )
        if not path.suffix:
            path.mkdir()
        data = datasets.Dataset.from_list(rows, features=features)
        data.to_parquet(path if path.suffix else path / "train-00000-of-00001.parquet")
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_sentences(name: str, tmp_path: Path) -> None:
    uri = write(tmp_path, name)
    found = list(read_tagged([uri], "tokens", ["tags", "ner_tags"]))
    assert [(list(one.words), list(one.tags)) for one in found] == SENTENCES
    assert found[1].origin.startswith(uri)
    assert {one.tags for one in read_tagged([uri], "tokens", None)} == {("O", "O", "O"), ("O", "O")}


def test_numbers_are_tags_and_cells_may_be_split_at_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("words,tags\na b,0 7\n")
    assert list(read_tagged([str(path)], 0, 1)) == [TaggedExample(("a", "b"), ("0", "7"), f"{path}:2")]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, ":2: 2 words, but 1 tags$"),
        ({"tokens": ["a"], "tags": [None]}, ":2: word 1 has no tag$"),
        ({"tokens": [None], "tags": ["O"]}, ":2: column 'tokens' must be a text, got None$"),
        ({"tokens": 7, "tags": ["O"]}, ":2: column 'tokens' must be a list, got 7$"),
        ({"tokens": "[a, b", "tags": ["O"]}, ":2: column 'tokens' is not a list: '.a, b'$"),
        ({"tokens": ["a"]}, ":2: column 'tags' must be a list, got None$"),
    ],
)
def test_a_mistake_is_one_line_with_the_row(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps({'tokens': ['x'], 'tags': ['O']})}\n{json.dumps(row)}\n")
    with pytest.raises(InputError, match=said):
        list(read_tagged([str(path)], "tokens", "tags"))


def test_columns_that_a_file_does_not_have_are_named(tmp_path: Path) -> None:
    uri = write(tmp_path, "a.jsonl")
    with pytest.raises(InputError, match="no column 'words'; the columns are id, tokens, ner_tags"):
        list(read_tagged([uri], "words", "ner_tags"))
    (tmp_path / "a.conll").write_text("a O\n")
    with pytest.raises(InputError, match="its columns have no names; give files"):
        list(read_tagged([str(tmp_path / "a.conll")], "tokens", 1))


CONTEXT = "Bern is a town. Bern is the capital."
QUESTIONS: list[dict[str, Any]] = [
    {"id": "q1", "question": "What is it?", "context": CONTEXT, "texts": ["a town"], "starts": [8]},
    {"id": "q2", "question": "Which?", "context": CONTEXT, "texts": ["Bern", "it"], "starts": [16, 24]},
    {"id": "q3", "question": "Who?", "context": CONTEXT, "texts": [], "starts": []},
]


def squad(folder: Path) -> str:
    path = folder / "squad.json"
    paragraphs = [
        {
            "context": one["context"],
            "qas": [{"id": one["id"], "question": one["question"], "answers": pairs(one)}],
        }
        for one in QUESTIONS
    ]
    path.write_text(json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


def pairs(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": t, "answer_start": s} for t, s in zip(one["texts"], one["starts"], strict=True)]


def mapping(one: dict[str, Any]) -> dict[str, Any]:
    return {"text": one["texts"], "answer_start": one["starts"]}


@pytest.mark.parametrize("answers", [pairs, mapping])
@pytest.mark.parametrize("name", ["a.csv", "python.csv", "data.json", "a.json", "a.jsonl", "a.parquet"])
def test_tables_give_the_questions_of_squad(name: str, answers: Any, tmp_path: Path) -> None:
    rows = [
        {**{key: one[key] for key in ("id", "question", "context")}, "answers": answers(one)}
        for one in QUESTIONS
    ]
    path = tmp_path / name
    if path.suffix == ".csv":
        spell = str if name == "python.csv" else json.dumps
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(rows[0])
            table.writerows([*list(row.values())[:3], spell(row["answers"])] for row in rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        path.write_text(json.dumps({"data": rows} if name == "data.json" else rows))
    expected = list(read_squad([squad(tmp_path)]))
    found = list(read_squad([str(path)]))
    for one, other in zip(found, expected, strict=True):
        assert (one.key, one.question, one.context) == (other.key, other.question, other.context)
        assert (one.answers, one.start) == (other.answers, other.start)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("the moon", "row 1: the answer 'the moon' is not in the context"),
        ({"text": ["a"], "answer_start": [1, 2]}, "row 1: 1 answers, but 2 places of answers"),
        ([{"answer_start": 1}], "row 1: answers must have texts, got {'answer_start': 1"),
        (7, "row 1: answers must have texts, got 7"),
    ],
)
def test_a_wrong_answer_is_one_line_with_the_row(answers: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"question": "Who?", "context": CONTEXT, "answers": answers}]))
    with pytest.raises(InputError, match=said):
        list(read_squad([str(path)]))


def test_answers_may_be_plain_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'question,context,answers\nWho?,"{CONTEXT}",capital\nWhere?,"{CONTEXT}",\n')
    one, other = read_squad([str(path)])
    assert (one.answers, one.start, other.answers, other.start) == (("capital",), 28, (), -1)
    path.write_text(f'question,context\nWho?,"{CONTEXT}"\n')
    (unlabeled,) = read_squad([str(path)], labeled=False)
    assert (unlabeled.question, unlabeled.answers) == ("Who?", ())
    with pytest.raises(InputError, match="no column 'answers'"):
        list(read_squad([str(path)]))


def test_a_table_of_tags_trains_as_the_column_file_does(pretrained: str, tmp_path: Path) -> None:
    sentences = [(row, ["B-PER" if word == "cat" else "O" for word in row]) for row in words(24, 1)]
    column_file = tmp_path / "a.conll"
    column_file.write_text(
        "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(*one, strict=True)) for one in sentences) + "\n"
    )
    found = [list(one.words) for one in read_conll([str(column_file)], 0, 1)]
    assert found == [row for row, _ in sentences]
    figures = []
    for uri, columns in (
        (str(column_file), {}),
        (write(tmp_path, "a.parquet", sentences), {"word": "tokens", "tag": "ner_tags"}),
    ):
        files = {"train": [uri], "validation": [uri], **columns}
        report = finetune(config(pretrained, tmp_path / uri[-1], "tokens", files, epochs=1))
        figures.append(report.summary["validation"])
    assert figures[0] == figures[1]
