"""Corpus manifests for tests in a JSON form that tests edit, with the shards of a set as a list.

`write_manifest` writes them as a build does, with the shards in tables.
"""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from schemas.columns.shards import ROW_GROUP_ROWS
from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    dump_manifest,
    validate_manifest,
)
from schemas.shard_tables import Shard, ShardTable, row_groups

MASKING = {
    "unit": "whole_word",
    "probability": 0.15,
    "mask_share": 0.8,
    "random_share": 0.1,
    "predict_unknown": False,
    "word_list": None,
}


def manifest_body(
    sets: list[dict[str, Any]], vocabulary: dict[str, Any], languages: dict[str, Any], objective: str = "nsp"
) -> dict[str, Any]:
    """A manifest of these sets without counts of pages and documents."""
    return {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "objective": objective,
        "label_convention": LABEL_CONVENTIONS[objective],
        "masking": dict(MASKING),
        "vocabulary": {"path": "tokenizer/vocab.txt", "cased": True, **vocabulary},
        "languages": languages,
        "sets": sets,
        "counts": {
            "pages": {"pages_seen": 0, "kept": 0, "skipped": {}},
            "removals": {},
            "documents": 0,
            "vocabulary": None,
            "tokens": {"tokens_in": 0, "tokens_used": 0, "tokens_cut": 0, "tokens_left_over": 0},
            "by_set": {},
        },
        "config": {},
        "config_hash": "0" * 64,
        "code_version": "test",
        "libraries": {},
    }


def language_counts(**fields: Any) -> dict[str, Any]:
    """The counts of a language, 0 where not given."""
    zeros = dict.fromkeys(
        ("pages_seen", "pages_skipped", "removed", "documents", "train_documents", "train_bytes",
         "validation_documents", "validation_bytes", "sequences", "tokens", "words", "subwords", "unknown"),
        0,
    )  # fmt: skip
    return {"skipped": {}, "text_counts": {}, "removals": {}, "copies": 0.0, **zeros, **fields}


def set_entry(
    name: str, max_seq_length: int, pass_number: int, shards: list[dict[str, Any]], **fields: Any
) -> dict[str, Any]:
    """A training set of these shards.

    A shard has path, rows, tokens, bytes, sha256, languages (unless ``fields`` has those of the set) and, if
    not all row groups have 1,024 rows, row_groups.
    """
    return {
        "name": name,
        "split": "train",
        "max_seq_length": max_seq_length,
        "max_predictions": max(1, max_seq_length // 6),
        "pass_number": pass_number,
        "rows": sum(shard["rows"] for shard in shards),
        "tokens": sum(shard["tokens"] for shard in shards),
        "shards": shards,
        **fields,
    }


def sealed(body: dict[str, Any]) -> bytes:
    """The bytes of the manifest file. Raises CorpusError when a field is wrong."""
    return dump_manifest(validate_manifest(json.dumps(with_tables(body)[0]).encode(), "manifest to write"))


def write_manifest(path: Path, body: dict[str, Any]) -> Path:
    """Writes the manifest and the shard tables of the sets whose shards are given as a list."""
    path.write_bytes(sealed(body))
    for name, table in with_tables(body)[1].items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(table)
    return path


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest with each set's shards as a list, as `write_manifest` takes it. Checks nothing."""
    body: dict[str, Any] = json.loads(path.read_bytes())
    del body["sha256"]
    for entry in body["sets"]:
        file = entry["shards"]
        table = ShardTable(file["prefix"], pq.read_table(path.parent / file["path"]))
        entry["shards"] = [
            {**shard.model_dump(), "row_groups": list(row_groups(shard.rows, file["row_group_rows"]))}
            for shard in table
        ]
        del entry["bytes"]
    return body


def with_tables(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest's JSON with each list of shards as a table, and path -> bytes of these tables."""
    tables: dict[str, bytes] = {}
    sets = []
    for entry in body["sets"]:
        shards = entry["shards"]
        if isinstance(shards, list):
            path = f"manifest/{entry['name']}-{entry['split']}-{entry['pass_number']}.parquet"
            file, tables[path] = _table_of(shards, path)
            sums = {"bytes": sum(shard["bytes"] for shard in shards), "languages": rows_by_language(shards)}
            sets.append({**sums, **entry, "shards": file})
        else:
            sets.append(entry)
    return {**body, "sets": sets}, tables


def rows_by_language(shards: list[dict[str, Any]]) -> dict[str, int]:
    """The sums of what the shards' entries say."""
    languages: Counter[str] = Counter()
    for shard in shards:
        languages.update(shard.get("languages", {}))
    return dict(languages)


def _table_of(shards: list[dict[str, Any]], path: str) -> tuple[dict[str, Any], bytes]:
    """The manifest's entry for the table at ``path``, and its bytes. All shards have one prefix."""
    numbered = []
    prefix = "data/none-"
    for shard in shards:
        match = re.fullmatch(r"(.*?)(\d{5})\.parquet", shard["path"])
        assert match is not None
        prefix, number = match.groups()
        fields = {name: shard[name] for name in Shard.model_fields}
        numbered.append((int(number), Shard(**fields)))
    groups = [rows for shard in shards for rows in shard.get("row_groups", [ROW_GROUP_ROWS])]
    table = ShardTable.of(prefix, numbered).encode()
    file = {
        "path": path, "sha256": hashlib.sha256(table).hexdigest(), "count": len(shards), "prefix": prefix,
        "row_group_rows": max(groups, default=ROW_GROUP_ROWS),
    }  # fmt: skip
    return file, table
