"""Tests that damage to published documents is named, and that documents are found by key."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.documents import document_problems, find_documents
from schemas.columns.published_documents import PUBLISHED_DOCUMENTS
from schemas.errors import CorpusError
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus


def document(number: int, lang: str) -> dict[str, Any]:
    known = {"id": str(number), "revision": number, "timestamp": None, "url": None, "title": f"T{number}"}
    return {**known, "lang": lang, "text": "One.", "key": f"golden/{number}"}


@pytest.fixture
def corpus(tmp_path: Path) -> SmallCorpus:
    """A corpus with the documents that its counts name, in row groups of two."""
    corpus = build_small_corpus(tmp_path / "corpus")
    manifest, entries = corpus.manifest, []
    for start, (lang, counts) in enumerate(manifest["languages"].items()):
        rows = counts["train_documents"] = 5
        path = corpus.folder / f"documents/{lang}/train-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        table = pa.Table.from_pylist(
            [document(1000 * start + n, lang) for n in range(rows)], schema=PUBLISHED_DOCUMENTS
        )
        pq.write_table(table, path, row_group_size=2)
        data = path.read_bytes()
        entries.append(
            {
                "path": path.relative_to(corpus.folder).as_posix(),
                "lang": lang,
                "split": "train",
                "rows": rows,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    manifest["documents"] = entries
    corpus.rewrite_manifest(manifest)
    return corpus


def problems(corpus: SmallCorpus) -> str:
    return "\n".join(
        ": ".join(problem) for problem in document_problems(CorpusFiles.open(str(corpus.folder)))
    )


def test_damage_is_named(corpus: SmallCorpus) -> None:
    assert problems(corpus) == ""
    path = corpus.folder / corpus.manifest["documents"][0]["path"]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    assert f"{path}: is not the file in the manifest (sha256 differs)" in problems(corpus)
    path.write_bytes(data[:-1])
    assert f"{path}: has {len(data) - 1} bytes, but the manifest says {len(data)}" in problems(corpus)
    path.unlink()
    assert problems(corpus) == f"{path}: is missing"


def test_counts_that_do_not_balance_are_named(corpus: SmallCorpus) -> None:
    manifest = corpus.manifest
    manifest["documents"][0]["rows"] += 1
    corpus.rewrite_manifest(manifest)
    rows, lang = manifest["documents"][0]["rows"], manifest["documents"][0]["lang"]
    assert f"has {rows - 1} rows, but the manifest says {rows}" in problems(corpus)
    assert f"{rows} train documents of {lang} are published, but {rows - 1} are kept" in problems(corpus)


def test_documents_are_found_by_key(corpus: SmallCorpus) -> None:
    opened = CorpusFiles.open(str(corpus.folder))
    found = find_documents(opened, ["golden/3", "golden/1000", "golden/no"])
    assert {key: facts.line() for key, facts in found.items()} == {
        "golden/3": "T3 · revision 3",
        "golden/1000": "T1000 · revision 1000",
    }
    assert find_documents(opened, ["golden/3"], lang="fi") == {}
    (corpus.folder / corpus.manifest["documents"][0]["path"]).unlink()
    with pytest.raises(CorpusError, match="the documents are missing"):
        find_documents(opened, ["golden/3"])
