"""``bertmill verify CORPUS``: everything that a corpus claims about itself, checked again from its bytes.

The manifest against its own hash and its sums, the vocabulary against the manifest, the listing
against the manifest, each shard's bytes against its entry, each row against the rules of row_checks,
and what was counted in the rows against what the build counted. Memory holds a shard a thread.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from pipeline.corpus_files import CorpusFiles
from pipeline.manifest_checks import manifest_problems, set_label
from pipeline.row_checks import RowColumns, RowRules, RowTally, check_rows, tally
from pipeline.self_pairs import SelfPairs
from pipeline.shard_checks import RepeatedRows, ShardDocuments, shared_documents, statistics_problems
from schemas.arrays import are_among, distinct_values
from schemas.masking import Flags
from schemas.randomness import U64
from schemas.shards import SHARD

_FINDINGS_PER_SHARD = 5
_MAX_THREADS = 8
# Standard deviations from the expected share at which it is not chance any more.
_SIGMAS = 6.0
# Tokens of a span share one draw, so their shares vary as if there were this many times fewer.
_SPAN_TOKENS = 16


@dataclass
class VerifyReport:
    """What was looked at, and what is wrong: (file, text)."""

    corpus: str
    problems: list[tuple[str, str]] = field(default_factory=list)
    shards: int = 0
    tally: RowTally = field(default_factory=RowTally)

    @property
    def sound(self) -> bool:
        """No problem was found."""
        return not self.problems

    def lines(self) -> Iterator[str]:
        """The report as text, problems first."""
        for place, text in self.problems:
            yield f"{place}: {text}"
        facts = f"{self.shards} shards, {self.tally.rows:,} rows, {self.tally.row_tokens:,} tokens"
        verdict = "sound" if self.sound else f"{len(self.problems)} problems"
        yield f"{self.corpus}: {verdict} ({facts})"


@dataclass
class _ShardResult:
    problems: list[str] = field(default_factory=list)
    tally: RowTally = field(default_factory=RowTally)
    documents: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    single: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Documents that no other shard of the set may have."""
    self_pairs: int = 0
    judged: int = 0


def verify_corpus(uri: str) -> VerifyReport:
    """Check the corpus in the folder (or with the manifest) ``uri``.

    What is wrong is in the report; CorpusError is raised only when there is no sound manifest to go by.
    Rows are not looked at when the vocabulary is not the right one.
    """
    corpus = CorpusFiles.open(uri)
    report = VerifyReport(corpus.folder)
    report.problems += [(corpus.manifest_uri, text) for text in manifest_problems(corpus.manifest)]
    unusable = [*_vocabulary_problems(corpus), *_word_list_problems(corpus)]
    report.problems += unusable
    report.problems += _listing_problems(corpus)
    held_out: U64 | None = None
    # Held-out sets first, so that the training shards can be compared with their documents.
    for entry in sorted(corpus.manifest["sets"], key=lambda one: one["split"] == "train"):
        rules = None if unusable else corpus.row_rules(entry)
        training = entry["split"] == "train"
        once = _used_once(corpus.manifest, training=training)
        documents = _verify_set(corpus, entry, rules, report, held_out if training else None, once)
        if not training:
            held_out = (
                documents if held_out is None else distinct_values(np.concatenate((held_out, documents)))
            )
    return report


def _verify_set(
    corpus: CorpusFiles,
    entry: dict[str, Any],
    rules: RowRules | None,
    report: VerifyReport,
    held_out: U64 | None,
    once: frozenset[str],
) -> U64:
    """Check one set; returns the documents of its rows."""
    total = RowTally()
    documents = []
    single = []
    found = judged = 0

    def one(shard: dict[str, Any]) -> _ShardResult:
        return _verify_shard(corpus, shard, rules, held_out, once)

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        for shard, result in zip(entry["shards"], pool.map(one, entry["shards"]), strict=True):
            report.problems += [(corpus.uri(shard["path"]), text) for text in result.problems]
            report.shards += 1
            total.add(result.tally)
            documents.append(result.documents)
            single.append(result.single)
            found, judged = found + result.self_pairs, judged + result.judged
    for number in shared_documents(single):
        where = corpus.uri(entry["shards"][number]["path"])
        report.problems.append((where, "has a document that another shard of the set has too"))
    report.tally.add(total)
    place = f"{corpus.manifest_uri}: set {set_label(entry)}"
    if found > 3 + judged // 100:
        report.problems.append((place, f"{found} of {judged} random pairs have A and B of one document"))
    if rules is not None:
        report.problems += [(place, text) for text in _set_problems(corpus.manifest, entry, total, rules)]
    return distinct_values(np.concatenate([np.zeros(0, np.uint64), *documents]))


def _used_once(manifest: dict[str, Any], *, training: bool) -> frozenset[str]:
    """Languages of which a pass has every document once: held-out ones, and those that smoothing leaves."""
    languages: dict[str, Any] = manifest["languages"]
    return frozenset(lang for lang, about in languages.items() if not training or about.get("copies") == 1)


def _vocabulary_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    entry = corpus.manifest["vocabulary"]
    place = corpus.uri(entry["path"])
    if not storage.exists(place):
        yield place, "is missing"
        return
    if corpus.vocabulary_sha256 != entry["sha256"]:
        yield place, "is not the vocabulary that the manifest names (sha256 differs)"
    if len(corpus.pieces) != entry["size"]:
        yield place, f"has {len(corpus.pieces)} pieces, the manifest says {entry['size']}"
    for token, number in entry["special_ids"].items():
        if number >= len(corpus.pieces) or corpus.pieces[number] != token:
            yield place, f"{token} does not have the id {number}"


def _word_list_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    words = corpus.manifest["masking"].get("words")
    if words is None:
        return
    place = corpus.uri(words["path"])
    try:
        raw = storage.read_bytes(place)
    except FileNotFoundError:
        yield place, "is missing"
        return
    if hashlib.sha256(raw).hexdigest() != words["sha256"]:
        yield place, "is not the word list that the manifest names (sha256 differs)"


def _listing_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    """Shards that lie beside those of the manifest and are not named by it."""
    named = {corpus.uri(shard["path"]) for entry in corpus.manifest["sets"] for shard in entry["shards"]}
    folders = sorted({uri.rpartition("/")[0] for uri in named})
    for folder in folders:
        for info in storage.list_files(folder):
            if info.uri not in named:
                yield info.uri, "lies beside the shards, but the manifest does not name it"


def _verify_shard(
    corpus: CorpusFiles,
    entry: dict[str, Any],
    rules: RowRules | None,
    held_out: U64 | None,
    once: frozenset[str],
) -> _ShardResult:
    result = _ShardResult()
    try:
        data = storage.read_bytes(corpus.uri(entry["path"]))
    except FileNotFoundError:
        result.problems.append("is missing")
        return result
    if len(data) != entry["bytes"]:
        result.problems.append(f"has {len(data)} bytes, the manifest says {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        result.problems.append("is not the file that the manifest names (sha256 differs)")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        _verify_file(file, entry, rules, held_out, result, ShardDocuments(once))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        result.problems.append(f"cannot be read as Parquet: {' '.join(str(error).split())[:200]}")
    return result


def _verify_file(
    file: pq.ParquetFile,
    entry: dict[str, Any],
    rules: RowRules | None,
    held_out: U64 | None,
    result: _ShardResult,
    documents: ShardDocuments,
) -> None:
    if not file.schema_arrow.equals(SHARD):
        result.problems.append("has other columns than a shard")
        return
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    if groups != entry["row_groups"]:
        result.problems.append("has other row groups than the manifest says")
    if rules is None:
        return
    pairs, repeated = SelfPairs(), RepeatedRows(rules.masking.unit)
    for number in range(file.num_row_groups):
        table = file.read_row_group(number)
        rows = RowColumns.of(table)
        problems = [*statistics_problems(file, number, table)]
        problems += [_finding(sum(groups[:number]), *finding) for finding in check_rows(rows, rules)]
        if not problems:
            found = ((wrong, text) for wrong, text in documents.add(rows) if wrong.any())
            problems += [_finding(sum(groups[:number]), *finding) for finding in found]
        if problems:
            result.problems += problems
            if len(result.problems) >= _FINDINGS_PER_SHARD:
                break
            continue
        result.tally.add(tally(rows, rules))
        repeated.add(rows)
        if rules.objective == "nsp":
            pairs.add(rows, random_label=1)
    result.self_pairs, result.judged = pairs.excess()
    result.documents, result.single = documents.all(), documents.single()
    if repeated.count():
        result.problems.append(f"has {repeated.count()} rows twice, with the same masks")
    result.problems += _entry_problems(entry, result)
    if held_out is not None and are_among(result.documents, held_out).any():
        result.problems.append("has a document that is held out for validation")


def _finding(first: int, wrong: Flags, text: str) -> str:
    more = int(wrong.sum()) - 1
    return f"row {first + int(np.argmax(wrong))}: {text}" + (
        f" (and {more} more in its group)" if more else ""
    )


def _entry_problems(entry: dict[str, Any], result: _ShardResult) -> Iterator[str]:
    if result.problems:
        return
    found = result.tally
    for name, amount in (("rows", found.rows), ("tokens", found.row_tokens)):
        if amount != entry[name]:
            yield f"has {amount} {name}, the manifest says {entry[name]}"
    if dict(found.languages) != entry["languages"]:
        yield "has other numbers of rows by language than the manifest says"


def _set_problems(
    manifest: dict[str, Any], entry: dict[str, Any], found: RowTally, rules: RowRules
) -> Iterator[str]:
    """Rows of a whole set against the build's counts and against chance."""
    if found.rows != entry["rows"]:
        # Shards are missing or broken, which has been said.
        return
    counts = manifest["counts"].get("by_set", {}).get(set_label(entry))
    if counts is not None:
        for name in ("rows", "row_tokens", "masked", "masked_by_mask", "masked_unchanged"):
            if counts[name] != getattr(found, name):
                yield f"{name} is {getattr(found, name)} in the shards, {counts[name]} in the counts"
        if counts["labels"] != dict(found.labels):
            yield f"labels are {dict(found.labels)} in the shards, {counts['labels']} in the counts"
        yield from _balance_problems(rules.objective, found, counts)
    rule = rules.masking
    same = rule.random_share / rules.vocabulary.replacements.size
    shares = (
        ("[MASK]", found.masked_by_mask, rule.mask_share),
        ("the piece itself", found.masked_unchanged, 1 - rule.mask_share - rule.random_share + same),
    )
    for name, amount, share in shares:
        independent = found.masked / (_SPAN_TOKENS if rule.unit == "span" else 1)
        if found.masked and _is_off(amount / found.masked, share, independent):
            yield f"{amount / found.masked:.3f} of the targets are replaced by {name}, not {share:.3f}"


def _is_off(found: float, expected: float, trials: float) -> bool:
    """Too far from the expected share to be chance."""
    spread = math.sqrt(max(expected * (1 - expected), 1e-9) / trials)
    return abs(found - expected) > _SIGMAS * spread + 1 / trials


def _balance_problems(objective: str, found: RowTally, counts: dict[str, Any]) -> Iterator[str]:
    """Label 1 has half of the rows, but for what the build counted as not free to choose."""
    if objective == "none" or not found.rows:
        return
    events = counts["events"]
    forced = events.get("one_sentence_documents", 0) if objective == "nsp" else 0
    refused = events.get("no_random_partner", 0)
    expected = (found.rows + forced) / 2 - refused
    slack = _SIGMAS * math.sqrt(found.rows / 4 + refused + 1) + min(forced, refused)
    if abs(found.labels["1"] - expected) > slack:
        yield f"{found.labels['1']} of {found.rows} rows have label 1, about {expected:.0f} were expected"
