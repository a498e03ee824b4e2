"""``bertmill verify CORPUS``: checks everything that a corpus states about itself against its bytes.

It checks the manifest against its own hash and sums, the vocabulary and the folder listing against the
manifest, each shard against its entry, each row against the rules of row_checks, and the counts of the rows
against those of the build. Each core has a process, whose memory holds one shard.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.documents import document_problems
from pipeline.verify.manifest_checks import manifest_problems
from pipeline.verify.processes import map_in_processes
from pipeline.verify.row_checks import RowRules, RowTally
from pipeline.verify.shard_checks import shared_documents
from pipeline.verify.shards import ShardResult, ShardVerifier
from schemas.arrays import U64, distinct_values
from schemas.errors import CorpusError
from schemas.instance_counts import InstanceCounts
from schemas.manifest import Manifest, SequenceSet
from schemas.shard_tables import ShardTable

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


def verify_corpus(uri: str, cores: int | None = None) -> VerifyReport:
    """Checks the corpus in the folder (or with the manifest) ``uri``, by default on all cores.

    Problems are in the report. Raises CorpusError without a valid manifest, or if the system kills a process.
    Does not check rows if the vocabulary is wrong.
    """
    corpus = CorpusFiles.open(uri)
    report = VerifyReport(corpus.folder)
    report.problems += [(corpus.manifest_uri, text) for text in manifest_problems(corpus.manifest)]
    unusable = [*_vocabulary_problems(corpus), *_word_list_problems(corpus)]
    report.problems += unusable
    tables = dict(_shard_tables(corpus, report))
    report.problems += _listing_problems(corpus, tables)
    report.problems += document_problems(corpus, cores)
    verifier = ShardVerifier(corpus.manifest_uri, check_rows=not unusable)
    entries = [entry for entry in corpus.manifest.sets if entry.label in tables]
    # Held-out sets come first, so that training shards can be checked against their documents.
    held_out = [entry for entry in entries if entry.split != "train"]
    documents = [*_verify_sets(held_out, tables, verifier, report, corpus, cores)]
    if held_out:
        verifier = replace(verifier, held_out=distinct_values(np.concatenate(documents)))
    training = [entry for entry in entries if entry.split == "train"]
    for _ in _verify_sets(training, tables, verifier, report, corpus, cores):
        pass
    return report


def _verify_sets(
    entries: Sequence[SequenceSet],
    tables: Mapping[str, ShardTable],
    verifier: ShardVerifier,
    report: VerifyReport,
    corpus: CorpusFiles,
    cores: int | None,
) -> Iterator[U64]:
    """Checks the sets. Yields the held-out documents of each one."""
    shards = [(entry.label, shard) for entry in entries for shard in tables[entry.label]]
    results = map_in_processes(verifier, shards, sum(entry.bytes for entry in entries), cores)
    for entry in entries:
        yield _verify_set(entry, tables[entry.label], results, verifier.check_rows, report, corpus)


def _verify_set(
    entry: SequenceSet,
    shards: ShardTable,
    results: Iterator[ShardResult],
    rows_checked: bool,
    report: VerifyReport,
    corpus: CorpusFiles,
) -> U64:
    """Adds the results of the shards of one set to the report. Returns the documents of a held-out set."""
    total = RowTally()
    documents = [np.zeros(0, np.uint64)]
    unshared = []
    self_pairs = judged_pairs = 0
    for shard, result in zip(shards, islice(results, len(shards)), strict=True):
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
    if rows_checked:
        problems = _set_problems(corpus.manifest, entry, total, corpus.row_rules(entry))
        report.problems += [(place, text) for text in problems]
    return distinct_values(np.concatenate(documents))


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
    listed = {corpus.uri(entry.shards.path) for entry in corpus.manifest.sets}
    listed |= {corpus.uri(shard.path) for shards in tables.values() for shard in shards}
    for folder in sorted({uri.rpartition("/")[0] for uri in listed}):
        for info in storage.list_files(folder):
            if info.uri not in listed:
                yield info.uri, "is next to the shards or their tables, but the manifest does not name it"


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
