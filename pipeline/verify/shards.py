"""Checks one shard against its entry, the rules of its rows, and the documents that are held out."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.row_checks import RowColumns, RowRules, RowTally, check_rows, tally
from pipeline.verify.self_pairs import SelfPairs
from pipeline.verify.shard_checks import RepeatedRows, ShardDocuments, statistics_problems
from schemas.arrays import U64, Flags, are_among
from schemas.columns.shards import SHARD
from schemas.manifest import Manifest
from schemas.shard_tables import Shard, row_groups

_PROBLEMS_PER_SHARD = 5


@dataclass
class ShardResult:
    """The problems of a shard, and its part of the checks of the whole set."""

    problems: list[str] = field(default_factory=list)
    tally: RowTally = field(default_factory=RowTally)
    documents: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The documents of a held-out shard. Of a training shard, which has more, none."""
    unshared: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Documents that no other shard of the set may contain."""
    self_pairs: int = 0
    judged_pairs: int = 0


@dataclass(frozen=True)
class ShardVerifier:
    """Checks shards of a corpus. A process that gets it reads the manifest and the vocabulary once."""

    manifest_uri: str
    check_rows: bool
    """False if the vocabulary is wrong."""
    held_out: U64 | None = None
    """Documents that training sets must not contain."""

    @cached_property
    def _corpus(self) -> CorpusFiles:
        return CorpusFiles.open(self.manifest_uri)

    @cached_property
    def _rules(self) -> dict[str, RowRules]:
        return {entry.label: self._corpus.row_rules(entry) for entry in self._corpus.manifest.sets}

    @cached_property
    def _group_rows(self) -> dict[str, int]:
        return {entry.label: entry.shards.row_group_rows for entry in self._corpus.manifest.sets}

    @cached_property
    def _training(self) -> frozenset[str]:
        return frozenset(entry.label for entry in self._corpus.manifest.sets if entry.split == "train")

    def __call__(self, item: tuple[str, Shard]) -> ShardResult:
        """Checks a shard of the set with this label."""
        label, shard = item
        result = ShardResult()
        try:
            data = storage.read_bytes(self._corpus.uri(shard.path))
        except FileNotFoundError:
            result.problems.append("is missing")
            return result
        if len(data) != shard.bytes:
            result.problems.append(f"has {len(data)} bytes, but the manifest says {shard.bytes}")
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            result.problems.append("is not the file in the manifest (sha256 differs)")
        try:
            self._verify_file(pq.ParquetFile(pa.BufferReader(data)), label, shard, result)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            result.problems.append(f"cannot be read as Parquet: {' '.join(str(error).split())[:200]}")
        return result

    def _verify_file(self, file: pq.ParquetFile, label: str, shard: Shard, result: ShardResult) -> None:
        if not file.schema_arrow.equals(SHARD):
            result.problems.append("does not have the columns of a shard")
            return
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        if tuple(groups) != row_groups(shard.rows, self._group_rows[label]):
            result.problems.append("does not have the row groups in the manifest")
        if not self.check_rows:
            return
        training = label in self._training
        documents = ShardDocuments(_used_once(self._corpus.manifest, training=training))
        _verify_rows(file, groups, self._rules[label], documents, result)
        document_hashes, result.unshared = documents.all(), documents.unshared()
        result.problems += _entry_problems(shard, result)
        if not training:
            result.documents = document_hashes
        elif self.held_out is not None and are_among(document_hashes, self.held_out).any():
            result.problems.append("has a document that is held out for validation")


def _used_once(manifest: Manifest, *, training: bool) -> frozenset[str]:
    """Languages whose documents occur once in a pass: all held-out ones, and those without repetition."""
    languages = manifest.languages.items()
    return frozenset(lang for lang, counts in languages if not training or counts.copies == 1)


def _verify_rows(
    file: pq.ParquetFile, groups: list[int], rules: RowRules, documents: ShardDocuments, result: ShardResult
) -> None:
    pairs, repeated = SelfPairs(), RepeatedRows(rules.masking.unit)
    for number in range(file.num_row_groups):
        table = file.read_row_group(number)
        rows = RowColumns.of(table)
        first = sum(groups[:number])
        problems = [*statistics_problems(file, number, table)]
        problems += [_problem(first, wrong, text) for wrong, text in check_rows(rows, rules)]
        if not problems:
            problems += [_problem(first, wrong, text) for wrong, text in documents.add(rows) if wrong.any()]
        if problems:
            result.problems += problems
            if len(result.problems) >= _PROBLEMS_PER_SHARD:
                break
            continue
        result.tally.add(tally(rows, rules))
        repeated.add(rows)
        if rules.objective == "nsp":
            pairs.add(rows, random_label=1)
    result.self_pairs, result.judged_pairs = pairs.excess()
    if repeated.count():
        result.problems.append(f"has {repeated.count()} duplicate rows, with the same masks")


def _problem(first: int, wrong: Flags, text: str) -> str:
    more = int(wrong.sum()) - 1
    place = f"row {first + int(np.argmax(wrong))}"
    return f"{place}: {text}" + (f" (and {more} more in its row group)" if more else "")


def _entry_problems(shard: Shard, result: ShardResult) -> Iterator[str]:
    if result.problems:
        return
    if result.tally.sequences != shard.rows:
        yield f"has {result.tally.sequences} rows, but the manifest says {shard.rows}"
    if result.tally.sequence_tokens != shard.tokens:
        yield f"has {result.tally.sequence_tokens} tokens, but the manifest says {shard.tokens}"
