"""Creates a small corpus: two languages, two lengths, two passes, held-out documents, two buckets."""

import hashlib
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import MaskUnit, Objective
from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.instances.shards import encode_shard, shard_entry, write_shard
from schemas.instance_counts import InstanceCounts
from schemas.masking.targets import MaskingRule, MaskingVocabulary, offsets_of
from schemas.vocabulary import SPECIAL_TOKENS
from tests.support.manifests import language_counts, manifest_body, read_manifest, set_entry, write_manifest
from tests.support.reference_instances import golden_corpus, golden_vocabulary

LENGTHS = {64: 10, 128: 20}


@dataclass
class SmallCorpus:
    folder: Path

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest with the shards of each set as a list."""
        return read_manifest(self.manifest_path)

    def rewrite_manifest(self, manifest: dict[str, Any]) -> None:
        """Writes the manifest with the seal of the new text, as a careful forger would."""
        shutil.rmtree(self.folder / "manifest", ignore_errors=True)
        write_manifest(self.manifest_path, manifest)

    def shard(self, number: int = 0) -> Path:
        entries = [shard for entry in self.manifest["sets"] for shard in entry["shards"]]
        path: Path = self.folder / entries[number]["path"]
        return path

    def replace_rows(self, change: Any, number: int = 0) -> None:
        """Changes the rows of a shard, and adjusts all sums of the manifest."""
        path = self.shard(number)
        table = change(pq.read_table(path))
        data = encode_shard(table)
        path.write_bytes(data)
        manifest = self.manifest
        for entry in manifest["sets"]:
            for index, shard in enumerate(entry["shards"]):
                if self.folder / shard["path"] == path:
                    entry["shards"][index] = shard_entry(table, data, shard["path"]).model_dump()
            for name in ("rows", "tokens"):
                entry[name] = sum(shard[name] for shard in entry["shards"])
            count_languages(self.folder, entry)
        count_sequences(manifest)
        self.rewrite_manifest(manifest)


def count_languages(folder: Path, entry: dict[str, Any]) -> None:
    """Adjusts the set's rows by language to its shards."""
    languages: Counter[str] = Counter()
    for shard in entry["shards"]:
        languages.update(pq.read_table(folder / shard["path"], columns=["lang"])["lang"].to_pylist())
    entry["languages"] = dict(languages)


def count_sequences(manifest: dict[str, Any]) -> None:
    """Adjusts the counts of the languages to the sets."""
    for lang, counts in manifest["languages"].items():
        counts["sequences"] = sum(entry["languages"].get(lang, 0) for entry in manifest["sets"])


def small_bucket(numbers: list[int]) -> BucketDocuments:
    """The golden documents with these numbers. Every fourth is Finnish."""
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


def small_settings(
    length: int, objective: Objective = "nsp", unit: MaskUnit = "whole_word"
) -> InstanceSettings:
    vocabulary = golden_vocabulary()
    return InstanceSettings(
        vocabulary=MaskingVocabulary.from_pieces(vocabulary),
        cls_id=vocabulary.index("[CLS]"),
        sep_id=vocabulary.index("[SEP]"),
        unknown_id=vocabulary.index("[UNK]"),
        max_seq_length=length,
        objective=objective,
        masking=MaskingRule(unit=unit, max_predictions=LENGTHS[length]),
    )


def build_small_corpus(
    folder: Path, objective: Objective = "nsp", unit: MaskUnit = "whole_word"
) -> SmallCorpus:
    """A copy, which a test may damage, of a corpus that this process builds once."""
    shutil.copytree(_built_corpus(objective, unit).name, folder, dirs_exist_ok=True)
    return SmallCorpus(folder)


@cache
def _built_corpus(objective: Objective, unit: MaskUnit) -> "TemporaryDirectory[str]":
    built = TemporaryDirectory(prefix="small-corpus-")
    _build(Path(built.name), objective, unit)
    return built


def _build(folder: Path, objective: Objective, unit: MaskUnit) -> None:
    sets: list[dict[str, Any]] = []
    by_set: dict[str, Any] = {}
    for length, predictions in LENGTHS.items():
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
                shards.append(write_shard(made.table, str(folder), path).model_dump())
                for counts in made.counts.values():
                    total.add(counts)
            entry = set_entry(
                f"len{length}", length, number, shards, split=split, max_predictions=predictions
            )
            count_languages(folder, entry)
            sets.append(entry)
            by_set[f"len{length}/{split}/{number}"] = asdict(total)
    corpus = SmallCorpus(folder)
    raw = "".join(f"{piece}\n" for piece in golden_vocabulary()).encode()
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_bytes(raw)
    vocabulary = golden_vocabulary()
    about = {
        "size": len(vocabulary),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "special_ids": {token: vocabulary.index(token) for token in SPECIAL_TOKENS},
    }
    manifest = manifest_body(sets, about, {lang: language_counts() for lang in ("en", "fi")}, objective)
    manifest["masking"]["unit"] = unit
    manifest["counts"]["by_set"] = by_set
    count_sequences(manifest)
    corpus.rewrite_manifest(manifest)


def set_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """The table with new values in the column ``name``."""
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(name), pa.array(values, table.schema.field(name).type))
