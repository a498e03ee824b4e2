"""``bertmill verify CORPUS``: checks everything that a corpus states about itself against its bytes.

It checks the manifest against its own hash and sums, the vocabulary and the folder listing against the
manifest, each shard against its entry, each row against the rules of row_checks, and the counts of the rows
against those of the build. Memory holds one shard for each thread.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.documents import document_problems
from pipeline.verify.manifest_checks import manifest_problems
from pipeline.verify.row_checks import RowColumns, RowRules, RowTally, check_rows, tally
from pipeline.verify.self_pairs import SelfPairs
from pipeline.verify.shard_checks import RepeatedRows, ShardDocuments, shared_documents, statistics_problems
from schemas.arrays import U64, Flags, are_among, distinct_values
from schemas.columns.shards import SHARD
from schemas.errors import CorpusError
from schemas.instance_counts import InstanceCounts
from schemas.manifest import Manifest, SequenceSet
from schemas.shard_tables import Shard, ShardTable, row_groups

_PROBLEMS_PER_SHARD = 5
_MAX_THREADS = 8
# Standard deviations from the expected share that are not due to chance.
_SIGMAS = 6.0
# The tokens of a span share one draw, so their shares vary as if there were this many times fewer tokens.
_SPAN_TOKENS = 16


@dataclass
class VerifyReport:
    """The counts of checked items, and the problems as (file, text)."""

    corpus: str
    problems: list[tuple[str, str]] = field(default_factory=list)
    shards: int = 0
    tally: RowTally = field(default_factory=RowTally)

    @property
    def sound(self) -> bool:
        """Whether the check found no problem."""
        return not self.problems

    def lines(self) -> Iterator[str]:
        """The report as text, problems first."""
        for place, text in self.problems:
            yield f"{place}: {text}"
        facts = f"{self.shards} shards, {self.tally.sequences:,} rows, {self.tally.sequence_tokens:,} tokens"
        verdict = "sound" if self.sound else f"{len(self.problems)} problems"
        yield f"{self.corpus}: {verdict} ({facts})"


@dataclass
class _ShardResult:
    problems: list[str] = field(default_factory=list)
    tally: RowTally = field(default_factory=RowTally)
    documents: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    unshared: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Documents that no other shard of the set may contain."""
    self_pairs: int = 0
    judged_pairs: int = 0


@dataclass(frozen=True)
class _SetChecks:
    """The expectations for the shards of one set."""

    corpus: CorpusFiles
    rules: RowRules | None
    """None if the vocabulary is wrong. Then rows are not checked."""
    held_out: U64 | None
    """Documents that the set must not contain."""
    once: frozenset[str]
    """Languages whose documents occur once in a pass."""
    row_group_rows: int
    """Rows of every row group of a shard except the last."""


def verify_corpus(uri: str) -> VerifyReport:
    """Checks the corpus in the folder (or with the manifest) ``uri``.

    Problems are in the report. Raises CorpusError only without a valid manifest. Does not check rows if the
    vocabulary is wrong.
    """
    corpus = CorpusFiles.open(uri)
    report = VerifyReport(corpus.folder)
    report.problems += [(corpus.manifest_uri, text) for text in manifest_problems(corpus.manifest)]
    unusable = [*_vocabulary_problems(corpus), *_word_list_problems(corpus)]
    report.problems += unusable
    tables = dict(_shard_tables(corpus, report))
    report.problems += _listing_problems(corpus, tables)
    report.problems += document_problems(corpus)
    held_out: U64 | None = None
    # Held-out sets come first, so that training shards can be checked against their documents.
    for entry in sorted(corpus.manifest.sets, key=lambda entry: entry.split == "train"):
        if entry.label not in tables:
            continue
        training = entry.split == "train"
        checks = _SetChecks(
            corpus,
            rules=None if unusable else corpus.row_rules(entry),
            held_out=held_out if training else None,
            once=_used_once(corpus.manifest, training=training),
            row_group_rows=entry.shards.row_group_rows,
        )
        documents = _verify_set(entry, tables[entry.label], checks, report)
        if not training:
            held_out = (
                documents if held_out is None else distinct_values(np.concatenate((held_out, documents)))
            )
    return report


def _verify_set(entry: SequenceSet, shards: ShardTable, checks: _SetChecks, report: VerifyReport) -> U64:
    """Checks one set. Returns the documents of its rows."""
    corpus = checks.corpus
    total = RowTally()
    documents = []
    unshared = []
    self_pairs = judged_pairs = 0
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda shard: _verify_shard(shard, checks), shards)
        for shard, result in zip(shards, results, strict=True):
            report.problems += [(corpus.uri(shard.path), text) for text in result.problems]
            report.shards += 1
            total.add(result.tally)
            documents.append(result.documents)
            unshared.append(result.unshared)
            self_pairs += result.self_pairs
            judged_pairs += result.judged_pairs
    for number in shared_documents(unshared):
        place = corpus.uri(shards[number].path)
        report.problems.append((place, "has a document that another shard of the set also has"))
    report.tally.add(total)
    place = f"{corpus.manifest_uri}: set {entry.label}"
    if self_pairs > 3 + judged_pairs // 100:
        text = f"{self_pairs} of {judged_pairs} random pairs have A and B of one document"
        report.problems.append((place, text))
    if checks.rules is not None:
        problems = _set_problems(corpus.manifest, entry, total, checks.rules)
        report.problems += [(place, text) for text in problems]
    return distinct_values(np.concatenate([np.zeros(0, np.uint64), *documents]))


def _used_once(manifest: Manifest, *, training: bool) -> frozenset[str]:
    """Languages whose documents occur once in a pass: all held-out ones, and those without repetition."""
    languages = manifest.languages.items()
    return frozenset(lang for lang, counts in languages if not training or counts.copies == 1)


def _vocabulary_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    entry = corpus.manifest.vocabulary
    place = corpus.uri(entry.path)
    if not storage.exists(place):
        yield place, "is missing"
        return
    if corpus.vocabulary_sha256 != entry.sha256:
        yield place, "is not the vocabulary in the manifest (sha256 differs)"
    if len(corpus.subwords) != entry.size:
        yield place, f"has {len(corpus.subwords)} subwords, but the manifest says {entry.size}"
    for token, number in entry.special_ids.items():
        if number >= len(corpus.subwords) or corpus.subwords[number] != token:
            yield place, f"{token} does not have the id {number}"


def _word_list_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    word_list = corpus.manifest.masking.word_list
    if word_list is None:
        return
    place = corpus.uri(word_list.path)
    try:
        raw = storage.read_bytes(place)
    except FileNotFoundError:
        yield place, "is missing"
        return
    if hashlib.sha256(raw).hexdigest() != word_list.sha256:
        yield place, "is not the word list in the manifest (sha256 differs)"


def _shard_tables(corpus: CorpusFiles, report: VerifyReport) -> Iterator[tuple[str, ShardTable]]:
    """Set label -> shards, for the sets with the right table. Reports the others as problems."""
    for entry in corpus.manifest.sets:
        try:
            yield entry.label, corpus.shards(entry)
        except CorpusError as error:
            place = corpus.uri(entry.shards.path)
            report.problems.append((place, str(error).removeprefix(f"{place}: ")))


def _listing_problems(corpus: CorpusFiles, tables: dict[str, ShardTable]) -> Iterator[tuple[str, str]]:
    """Files next to the shards and their tables that the manifest does not name."""
    named = {corpus.uri(entry.shards.path) for entry in corpus.manifest.sets}
    named |= {corpus.uri(shard.path) for shards in tables.values() for shard in shards}
    for folder in sorted({uri.rpartition("/")[0] for uri in named}):
        for info in storage.list_files(folder):
            if info.uri not in named:
                yield info.uri, "is next to the shards or their tables, but the manifest does not name it"


def _verify_shard(shard: Shard, checks: _SetChecks) -> _ShardResult:
    result = _ShardResult()
    try:
        data = storage.read_bytes(checks.corpus.uri(shard.path))
    except FileNotFoundError:
        result.problems.append("is missing")
        return result
    if len(data) != shard.bytes:
        result.problems.append(f"has {len(data)} bytes, but the manifest says {shard.bytes}")
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        result.problems.append("is not the file in the manifest (sha256 differs)")
    try:
        _verify_file(pq.ParquetFile(pa.BufferReader(data)), shard, checks, result)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        result.problems.append(f"cannot be read as Parquet: {' '.join(str(error).split())[:200]}")
    return result


def _verify_file(file: pq.ParquetFile, shard: Shard, checks: _SetChecks, result: _ShardResult) -> None:
    if not file.schema_arrow.equals(SHARD):
        result.problems.append("does not have the columns of a shard")
        return
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    if tuple(groups) != row_groups(shard.rows, checks.row_group_rows):
        result.problems.append("does not have the row groups in the manifest")
    rules = checks.rules
    if rules is None:
        return
    documents, pairs, repeated = ShardDocuments(checks.once), SelfPairs(), RepeatedRows(rules.masking.unit)
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
    result.documents, result.unshared = documents.all(), documents.unshared()
    if repeated.count():
        result.problems.append(f"has {repeated.count()} duplicate rows, with the same masks")
    result.problems += _entry_problems(shard, result)
    if checks.held_out is not None and are_among(result.documents, checks.held_out).any():
        result.problems.append("has a document that is held out for validation")


def _problem(first: int, wrong: Flags, text: str) -> str:
    more = int(wrong.sum()) - 1
    place = f"row {first + int(np.argmax(wrong))}"
    return f"{place}: {text}" + (f" (and {more} more in its row group)" if more else "")


def _entry_problems(shard: Shard, result: _ShardResult) -> Iterator[str]:
    if result.problems:
        return
    if result.tally.sequences != shard.rows:
        yield f"has {result.tally.sequences} rows, but the manifest says {shard.rows}"
    if result.tally.sequence_tokens != shard.tokens:
        yield f"has {result.tally.sequence_tokens} tokens, but the manifest says {shard.tokens}"


def _set_problems(manifest: Manifest, entry: SequenceSet, total: RowTally, rules: RowRules) -> Iterator[str]:
    """Compares the rows of a whole set with the build's counts and with the expected shares."""
    if total.sequences != entry.rows:
        # Shards are missing or damaged, which is already in the report.
        return
    if dict(total.languages) != {lang: rows for lang, rows in entry.languages.items() if rows}:
        yield "languages is not the sum over its shards"
    counts = manifest.counts.by_set.get(entry.label)
    if counts is not None:
        for name in ("sequences", "sequence_tokens", "masked", "masked_by_mask", "masked_unchanged"):
            if getattr(counts, name) != getattr(total, name):
                yield f"{name} is {getattr(total, name)} in the shards, {getattr(counts, name)} in the counts"
        if counts.labels != dict(total.labels):
            yield f"labels are {dict(total.labels)} in the shards, {counts.labels} in the counts"
        yield from _label_problems(rules.objective, total, counts)
    rule = rules.masking
    same = rule.random_share / rules.vocabulary.replacements.size
    shares = (
        ("replaced by [MASK]", total.masked_by_mask, rule.mask_share),
        ("unchanged", total.masked_unchanged, 1 - rule.mask_share - rule.random_share + same),
    )
    for name, amount, share in shares:
        independent = total.masked / (_SPAN_TOKENS if rule.unit == "span" else 1)
        if total.masked and _is_off(amount / total.masked, share, independent):
            yield f"{amount / total.masked:.3f} of the targets are {name}, not {share:.3f}"


def _is_off(share: float, expected: float, trials: float) -> bool:
    """Whether a share is too far from the expected one to be due to chance."""
    spread = math.sqrt(max(expected * (1 - expected), 1e-9) / trials)
    return abs(share - expected) > _SIGMAS * spread + 1 / trials


def _label_problems(objective: str, total: RowTally, counts: InstanceCounts) -> Iterator[str]:
    """Half of the rows should have label 1, except for pairs whose label the build could not choose."""
    if objective == "none" or not total.sequences:
        return
    forced = counts.events.get("one_sentence_documents", 0) if objective == "nsp" else 0
    refused = counts.events.get("no_random_partner", 0)
    expected = (total.sequences + forced) / 2 - refused
    slack = _SIGMAS * math.sqrt(total.sequences / 4 + refused + 1) + min(forced, refused)
    if abs(total.labels["1"] - expected) > slack:
        yield f"{total.labels['1']} of {total.sequences} rows have label 1, expected about {expected:.0f}"
