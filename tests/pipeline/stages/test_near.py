"""Tests the rounds of near dedup and contamination on Ray Data with different parts and orders."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.dedup.evaluation_files import load_evaluation
from pipeline.dedup.exact import content_hash
from pipeline.documents.part import Part
from pipeline.documents.removals import REMOVALS, Removals
from pipeline.documents.selection import read_kept
from pipeline.stages import near as stage_near
from pipeline.stages.contamination import run_contamination
from pipeline.stages.near import run_near
from pipeline.stages.paragraphs import run_paragraphs
from schemas.errors import ConfigError, InputError
from tests.pipeline.dedup.near_in_memory import near_removals
from tests.pipeline.dedup.test_near import corpus
from tests.pipeline.removal_files import read_removals, write_removals
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


def sentences_of(text: str) -> list[str]:
    words = text.split(" ")
    return [" ".join(words[at : at + 20]) for at in range(0, len(words), 20)]


def write_parts(folder: Path, keys: Any, documents: Any, rows: Any) -> list[Any]:
    parts: list[Any] = []
    for begin in range(0, len(keys), rows):
        chosen = keys[begin : begin + rows]
        table = pa.table(
            {
                "key": pa.array(chosen, pa.string()),
                "lang": pa.array(["xx"] * len(chosen), pa.string()),
                "sentences": pa.array(
                    [sentences_of(documents[key]) for key in chosen], pa.list_(pa.string())
                ),
                "content_hash": pa.array(
                    [content_hash(documents[key].encode()) for key in chosen], pa.binary(16)
                ),
            }
        )
        path = folder / f"part-{len(parts)}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        parts.append(Part(len(parts), str(path), len(chosen), table.nbytes))
    return parts


def expected_removals(documents: Any, without: tuple[str, ...] = ()) -> dict[str, str]:
    keys = [key for key in documents if key not in without]
    texts = pa.array([documents[key] for key in keys], pa.string())
    found = near_removals(keys, texts, np.arange(len(keys) + 1), 0.8)
    return dict(zip(found["key"].to_pylist(), found["kept_key"].to_pylist(), strict=True))


def by_key(removed: pa.Table) -> dict[str, str]:
    return dict(zip(removed["key"].to_pylist(), removed["kept_key"].to_pylist(), strict=True))


def find(
    folder: Path, parts: list[Any], removals: Removals | None = None, inputs: tuple[str, ...] = ("x",)
) -> Any:
    removals = removals or Removals.none()
    return read_removals(run_near(str(folder / "work"), list(inputs), parts, removals, 0.8))


def test_removed_are_those_of_one_machine_for_any_cut_and_order(
    ray_session: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases pipeline-024 and pipeline-025."""
    documents = corpus()
    expected = expected_removals(documents)
    assert len(expected) > 60
    keys = list(documents)
    for number, (rows, buckets) in enumerate([(1000, None), (37, 50)]):
        random.Random(number).shuffle(keys)
        if buckets is not None:
            monkeypatch.setattr(stage_near, "DOCUMENTS_PER_BUCKET", buckets)
            monkeypatch.setattr(stage_near, "PAIRS_PER_BUCKET", buckets)
            # Too many edges for one task, so the star rounds cluster them.
            monkeypatch.setattr(stage_near, "EDGES_IN_MEMORY", 8)
        parts = write_parts(tmp_path / str(number), keys, documents, rows)
        removed = find(tmp_path / str(number), parts)
        assert by_key(removed) == expected
        for part, row, key in zip(
            *(removed[name].to_pylist() for name in ("part", "row", "key")), strict=True
        ):
            assert keys[part * rows + row] == key
        assert set(removed["reason"].to_pylist()) == {"near-duplicate"}


def test_documents_that_are_out_already_take_no_part(ray_session: RayCluster, tmp_path: Path) -> None:
    documents = {key: text for number, (key, text) in enumerate(corpus().items()) if number % 3 != 1}
    keys = list(documents)
    smallest = min(expected_removals(documents).values())
    columns = {
        "part": 0,
        "row": keys.index(smallest),
        "lang": "xx",
        "reason": "r",
        "key": smallest,
        "kept_key": "",
    }
    gone = pa.table({name: [value] for name, value in columns.items()}, schema=REMOVALS)
    removals = Removals.none().plus([write_removals(tmp_path / "gone.parquet", gone)])
    removed = find(tmp_path, write_parts(tmp_path, keys, documents, 10_000), removals)
    assert by_key(removed) == expected_removals(documents, without=(smallest,))


def test_a_second_run_reads_what_the_first_left(ray_session: RayCluster, tmp_path: Path) -> None:
    documents = dict(list(corpus().items())[::4])
    parts = write_parts(tmp_path, list(documents), documents, 20)
    first = find(tmp_path, parts)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*")}
    assert find(tmp_path, parts).equals(first)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*")} == before


def test_a_corpus_without_documents(ray_session: RayCluster, tmp_path: Path) -> None:
    assert find(tmp_path, []).num_rows == 0


QUESTION = "in what year did the builders of the old stone bridge over the river finish their work"


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("set.txt", f"first line\n{QUESTION}?\n".encode()),
        ("set.tsv", f"id\t{QUESTION}\t1\n".encode()),
        (
            "set.jsonl.gz",
            gzip.compress(json.dumps({"a": [{"q": QUESTION.upper()}]}).encode() + b"\n", mtime=0),
        ),
        ("set.json", json.dumps({"data": [{"paragraphs": [{"context": "x " + QUESTION}]}]}).encode()),
    ],
)
def test_documents_with_text_of_an_evaluation_set_go(
    ray_session: RayCluster, tmp_path: Path, name: str, raw: Any
) -> None:
    (tmp_path / name).write_bytes(raw)
    documents = {f"plain/{number}": text for number, text in enumerate(list(corpus().values())[:30])}
    documents["told"] = "They asked " + QUESTION + " and nobody knew"
    documents["gone"] = QUESTION
    parts = write_parts(tmp_path / "parts", list(documents), documents, 9)
    row = pa.table([[3], [4], ["xx"], ["r"], ["gone"], [""]], schema=REMOVALS)
    evaluation = load_evaluation([str(tmp_path / name)])
    removed = Removals.none().plus([write_removals(tmp_path / "gone.parquet", row)])
    files = run_contamination(str(tmp_path / "work"), [evaluation.digest], parts, removed, evaluation)
    assert list(files) == [3]
    found = read_removals(files.values())
    assert found["key"].to_pylist() == ["told"]
    assert found["reason"].to_pylist() == ["contaminated"]
    removals = replace(Removals.none(), of_part=files)
    assert removals.kept_rows(parts[3]).tolist() == [True, True, True, False, True]
    assert removals.kept_rows(parts[0]).all()
    assert removals.counts() == {"xx": {"contaminated": 1}}


def test_an_evaluation_set_without_a_run_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "short.txt").write_text("a b c d\n")
    (tmp_path / "wrapped.txt").write_text("a b c d e f g\nh i j k l m n\n")
    with caplog.at_level("WARNING", logger="pipeline"):
        evaluation = load_evaluation([str(tmp_path / "*.txt")])
    assert len(evaluation.runs) == 2
    (record,) = caplog.records
    assert f"{tmp_path}/short.txt: has no text of 13 words (40 characters)" in record.getMessage()


def test_missing_or_broken_evaluation_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dedup.evaluation: .*nowhere.txt: no such file"):
        load_evaluation([str(tmp_path / "nowhere.txt")])
    (tmp_path / "set.jsonl").write_text("{")
    with pytest.raises(InputError, match=r"set.jsonl: cannot read the evaluation file"):
        load_evaluation([str(tmp_path / "set.jsonl")])


BOILERPLATE = "This article was written by a program from the list of rivers."


def test_paragraphs_in_many_documents_are_cut_out(ray_session: RayCluster, tmp_path: Path) -> None:
    own = [f"The river number {number} flows through a valley of its own." for number in range(40)]
    bodies = [[BOILERPLATE], *([text, BOILERPLATE.upper()] for text in own), ["Nothing of that kind here."]]
    table = pa.table(
        {
            "key": pa.array([f"k/{number:03}" for number in range(len(bodies))], pa.string()),
            "lang": pa.array(["xx"] * len(bodies), pa.string()),
            "text_bytes": pa.array([len("".join(body)) for body in bodies], pa.int64()),
            "sentences": bodies,
            "paragraph_sentences": pa.array([[1] * len(body) for body in bodies], pa.list_(pa.int32())),
        }
    )
    parts: list[Any] = []
    for begin in range(0, len(bodies), 9):
        path = tmp_path / f"part-{len(parts)}.parquet"
        pq.write_table(table.slice(begin, 9), path)
        parts.append(Part(len(parts), str(path), min(9, len(bodies) - begin), 1))
    none = Removals.none()
    repeated, emptied = run_paragraphs(str(tmp_path / "work"), [], parts, none, 40)
    assert read_removals(emptied)["key"].to_pylist() == ["k/000"]
    removals = replace(none.plus(emptied), paragraphs=repeated)
    read = pa.concat_tables(
        [t for part in parts for t in read_kept(part, removals, ["sentences", "text_bytes"])]
    )
    assert read["sentences"].to_pylist() == [body[:1] for body in bodies[1:]]
    assert read["text_bytes"].to_pylist() == [len(body[0]) for body in bodies[1:]]
    repeated, emptied = run_paragraphs(str(tmp_path / "work"), [], parts, none, 41)
    assert (len(repeated), emptied) == (0, [])
