"""A small finished corpus: two languages, two lengths, two passes, held-out documents, two buckets."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.counts import InstanceCounts
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.shards import encode_shard, shard_entry, write_shard
from schemas.manifest import MANIFEST_FORMAT, MANIFEST_VERSION, dump_manifest
from schemas.masking import MaskingRule, MaskingVocabulary, offsets_of
from schemas.shards import LABEL_CONVENTIONS
from schemas.vocabulary import SPECIAL_TOKENS
from tests.reference_instances import golden_corpus, golden_vocabulary

MASKING = {
    "unit": "whole_word",
    "probability": 0.15,
    "mask_share": 0.8,
    "random_share": 0.1,
    "predict_unknown": False,
}
LENGTHS = {64: 10, 128: 20}


@dataclass
class SmallCorpus:
    folder: Path

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(self.manifest_path.read_bytes()))

    def rewrite_manifest(self, manifest: dict[str, Any]) -> None:
        """As a careful forger would: with the seal of the new text."""
        self.manifest_path.write_bytes(dump_manifest(manifest))

    def shard(self, number: int = 0) -> Path:
        entries = [shard for entry in self.manifest["sets"] for shard in entry["shards"]]
        return self.folder / entries[number]["path"]

    def replace_rows(self, change: Any, number: int = 0) -> None:
        """Change the rows of a shard and make all sums of the manifest fit again."""
        path = self.shard(number)
        table = change(pq.read_table(path))
        data = encode_shard(table)
        path.write_bytes(data)
        manifest = self.manifest
        for entry in manifest["sets"]:
            for index, shard in enumerate(entry["shards"]):
                if self.folder / shard["path"] == path:
                    entry["shards"][index] = shard_entry(table, data, shard["path"])
            for name in ("rows", "tokens"):
                entry[name] = sum(shard[name] for shard in entry["shards"])
        self.rewrite_manifest(manifest)


def small_bucket(numbers: list[int]) -> BucketDocuments:
    """The golden documents of these numbers; every fourth is Finnish."""
    corpus, vocabulary = golden_corpus(max(numbers) + 1), golden_vocabulary()
    index = {piece: number for number, piece in enumerate(vocabulary)}
    documents = [corpus[number] for number in numbers]
    sentences = [sentence for document in documents for sentence in document]
    return BucketDocuments(
        token_ids=np.array([index[piece] for sentence in sentences for piece in sentence], np.int32),
        sentence_offsets=offsets_of(np.array([len(sentence) for sentence in sentences])),
        document_offsets=offsets_of(np.array([len(document) for document in documents])),
        languages=["fi" if number % 4 == 0 else "en" for number in numbers],
        keys=[f"golden/{number}" for number in numbers],
        copies=np.zeros(len(numbers), np.int64),
    )


def small_settings(length: int, objective: str = "nsp", unit: str = "whole_word") -> InstanceSettings:
    vocabulary = golden_vocabulary()
    return InstanceSettings(
        vocabulary=MaskingVocabulary.from_pieces(vocabulary),
        cls_id=vocabulary.index("[CLS]"),
        sep_id=vocabulary.index("[SEP]"),
        unknown_id=vocabulary.index("[UNK]"),
        max_seq_length=length,
        objective=objective,  # type: ignore[arg-type]
        masking=MaskingRule(unit=unit, max_predictions=LENGTHS[length]),  # type: ignore[arg-type]
    )


def build_small_corpus(folder: Path, objective: str = "nsp", unit: str = "whole_word") -> SmallCorpus:
    sets: list[dict[str, Any]] = []
    by_set: dict[str, Any] = {}
    for length in LENGTHS:
        for split, number in (("train", 0), ("train", 1), ("validation", 0)):
            shards, total = [], InstanceCounts()
            for bucket in range(2):
                first = 120 if split == "validation" else 0
                numbers = [
                    n for n in range(first, first + 120) if n % 2 == bucket and (n >= 120) == bool(first)
                ]
                made = make_instances(
                    small_bucket(numbers), small_settings(length, objective, unit), 7, number
                )
                path = f"data/len{length}/{split}-{number}-{bucket:05d}.parquet"
                shards.append(write_shard(made.table, str(folder), path))
                for counts in made.counts.values():
                    total.add(counts)
            sets.append(set_entry(length, split, number, shards))
            by_set[f"len{length}/{split}/{number}"] = total.as_dict()
    corpus = SmallCorpus(folder)
    raw = "".join(f"{piece}\n" for piece in golden_vocabulary()).encode()
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_bytes(raw)
    masking = {**MASKING, "unit": unit}
    corpus.rewrite_manifest(manifest_of(objective, masking, sets, by_set, hashlib.sha256(raw).hexdigest()))
    return corpus


def set_entry(length: int, split: str, number: int, shards: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": f"len{length}",
        "split": split,
        "max_seq_length": length,
        "max_predictions": LENGTHS[length],
        "pass": number,
        "rows": sum(shard["rows"] for shard in shards),
        "tokens": sum(shard["tokens"] for shard in shards),
        "shards": shards,
    }


def manifest_of(
    objective: str, masking: dict[str, Any], sets: list[Any], by_set: dict[str, Any], sha256: str
) -> dict[str, Any]:
    vocabulary = golden_vocabulary()
    return {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "objective": objective,
        "label_convention": LABEL_CONVENTIONS[objective],
        "masking": masking,
        "vocabulary": {
            "path": "tokenizer/vocab.txt",
            "size": len(vocabulary),
            "sha256": sha256,
            "cased": True,
            "special_ids": {token: vocabulary.index(token) for token in SPECIAL_TOKENS},
        },
        "languages": {"en": {}, "fi": {}},
        "sets": sets,
        "counts": {"by_set": by_set},
        "config": {},
        "config_hash": "0" * 64,
        "code_version": "test",
        "libraries": {},
    }


def set_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """The table with another column in the place of ``name``."""
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(name), pa.array(values, table.schema.field(name).type))
