"""Stage vocabulary: counts the words of each language, then trains the WordPiece vocabulary."""

import hashlib
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import Removals
from pipeline.documents.selection import read_kept
from pipeline.documents.split import Split
from pipeline.engine.commit import Marker, PartWriter, StageFolder
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import plain_errors
from pipeline.engine.shuffle import Shuffle
from pipeline.engine.shuffle_files import BUCKET
from pipeline.stages.dedup import DedupResult
from pipeline.stages.extract import ExtractResult
from pipeline.stages.split import split_of
from pipeline.wordpiece.character_table import Accents
from pipeline.wordpiece.hub_tokenizer import (
    PIECES_NAME,
    is_hub_tokenizer,
    load_hub_tokenizer,
    write_hub_tokenizer,
)
from pipeline.wordpiece.letter_forms import needed_spares
from pipeline.wordpiece.training import train
from pipeline.wordpiece.vocabulary import (
    TOKENIZER_NAME,
    VOCABULARY_NAME,
    Vocabulary,
    accents_of,
    languages_losing_marks,
    load_vocabulary,
    smooth_tables,
    vocabulary_bytes,
    write_tokenizer,
)
from pipeline.wordpiece.word_counts import (
    WordBucketCounts,
    frequent_by_language,
    partial_word_counts,
    sum_word_counts,
)
from schemas.arrays import I64
from schemas.manifest import VocabularyCounts

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
SUBWORDS = "pieces.txt"
BYTES_PER_BUCKET = 1 << 30

WORD_COUNTS = pa.schema(
    [
        pa.field("lang", pa.string(), nullable=False),
        pa.field("word", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
# ``spared`` marks rows beyond the limits with letters that no other row of the bucket has.
BUCKET_COUNTS = WORD_COUNTS.append(pa.field("spared", pa.bool_(), nullable=False))


class Folding(TypedDict):
    """How to fold words before counting them."""

    cased: bool
    accents: Accents


@dataclass(frozen=True)
class VocabularyResult:
    """The vocabulary and the location of its file."""

    vocabulary: Vocabulary
    uri: str
    path: str
    """Path below the output."""
    counts: VocabularyCounts | None
    """None if the config names the vocabulary."""
    tokenizer_sha256: str | None = None
    """SHA-256 of a tokenizer.json that the config names."""


def run_vocabulary(
    config: BuildConfig, work_uri: str, extracted: ExtractResult, deduplicated: DedupResult
) -> VocabularyResult:
    """Trains the vocabulary, or loads the one that the config names, and writes the tokenizer files."""
    settings = config.vocabulary
    if settings.path is not None:
        if is_hub_tokenizer(settings.path):
            return _copy(config, settings.path)
        accents = accents_of(settings.cased, settings.accents, trained=False)
        given = load_vocabulary(settings.path, settings.cased)
        return _write(config, given.pieces, accents, None)
    split = vars(split_of(config))
    inputs = [deduplicated.stage_hash, settings.model_dump(mode="json"), split, BUCKET_COUNTS.names]
    folder = StageFolder.create(work_uri, "vocabulary", VocabularyCounts, *inputs)
    marker = folder.marker("vocabulary")
    if marker is None:
        words = StageFolder.create(work_uri, "words", WordBucketCounts, *inputs)
        _count(config, words, extracted, deduplicated)
        with plain_errors():
            subwords, counts = ray.get(ray.remote(_train).remote(config, words))
        storage.put_bytes(folder.path(SUBWORDS), vocabulary_bytes(subwords))
        marker = folder.commit("vocabulary", [], counts)
    else:
        _progress(0, len(_bucket_ids(extracted)))
    subwords = storage.read_bytes(folder.path(SUBWORDS)).decode().split("\n")[:-1]
    return _write(config, subwords, _accents(config), marker.counts)


def _bucket_ids(extracted: ExtractResult) -> list[str]:
    size = sum(part.text_bytes for part in extracted.parts)
    return [f"bucket-{bucket:05d}" for bucket in range(max(1, -(-size // BYTES_PER_BUCKET)))]


def _progress(total: int, skipped: int) -> Progress:
    return Progress("vocabulary", total, skipped=skipped, amount_name="distinct words", amount_scale=1)


def _copy(config: BuildConfig, uri: str) -> VocabularyResult:
    """Copies a Hugging Face tokenizer unchanged."""
    tokenizer = load_hub_tokenizer(uri)
    pieces_uri = write_hub_tokenizer(storage.join(config.output, TOKENIZER_FOLDER), tokenizer)
    digest = hashlib.sha256(tokenizer.files[TOKENIZER_NAME]).hexdigest()
    return VocabularyResult(
        tokenizer.vocabulary, pieces_uri, f"{TOKENIZER_FOLDER}/{PIECES_NAME}", None, digest
    )


def _accents(config: BuildConfig) -> Accents:
    return accents_of(config.vocabulary.cased, config.vocabulary.accents, trained=True)


def _write(
    config: BuildConfig, subwords: list[str], accents: Accents, counts: VocabularyCounts | None
) -> VocabularyResult:
    folder = storage.join(config.output, TOKENIZER_FOLDER)
    longest = max(length.max_seq_length for length in config.instances.lengths)
    vocabulary = write_tokenizer(
        folder, subwords, cased=config.vocabulary.cased, accents=accents, max_length=longest
    )
    path = f"{TOKENIZER_FOLDER}/{VOCABULARY_NAME}"
    return VocabularyResult(vocabulary, storage.join(config.output, path), path, counts)


def _count(
    config: BuildConfig,
    folder: StageFolder[WordBucketCounts],
    extracted: ExtractResult,
    deduplicated: DedupResult,
) -> None:
    """Counts the words of the missing buckets and commits each bucket."""
    ids = _bucket_ids(extracted)
    buckets = len(ids)
    finished = folder.finished()
    pending = np.array([bucket for bucket in range(buckets) if ids[bucket] not in finished], dtype=np.int64)
    progress = _progress(len(pending), buckets - len(pending))
    removals = deduplicated.removals
    split = split_of(config)
    folding: Folding = {"cased": config.vocabulary.cased, "accents": _accents(config)}
    settings = config.vocabulary
    per_language = -(-settings.max_words // buckets)

    def emit(part: Part) -> Iterator[pa.Table]:
        yield from _part_counts(part, removals, split, folding, buckets)

    def reduce(bucket: int, table: pa.Table) -> int:
        marker = _commit_counts(folder, ids[bucket], table, settings.min_count, per_language)
        return marker.counts.distinct

    shuffle = Shuffle(folder.path("shuffle"), WORD_COUNTS, buckets)
    for distinct in shuffle.run(extracted.parts, emit, reduce, pending, part_size):
        progress.advance(distinct)


def _part_counts(
    part: Part, removals: Removals, split: Split, folding: Folding, buckets: int
) -> Iterator[pa.Table]:
    """Word counts of a part's training documents: one table for each language."""
    by_lang: dict[str, list[pa.Table]] = {}
    for table in read_kept(part, removals, ["lang", "content_hash", "sentences"]):
        training = table.filter(pa.array(~split.is_validation(table["content_hash"].to_pylist())))
        for lang in pc.unique(training["lang"]).to_pylist():
            sentences = pc.list_flatten(training.filter(pc.equal(training["lang"], lang))["sentences"])
            by_lang.setdefault(lang, []).append(sum_word_counts(partial_word_counts(sentences, **folding)))
    for lang, tables in by_lang.items():
        counts = sum_word_counts(tables) if len(tables) > 1 else tables[0]
        bucket = _word_bucket(counts["word"], buckets)
        counts = counts.append_column("lang", pa.array([lang] * counts.num_rows, pa.string()))
        yield counts.append_column(BUCKET, pa.array(bucket, pa.int64()))


def _word_bucket(words: pa.ChunkedArray, buckets: int) -> I64:
    raw = words.cast(pa.binary()).to_pylist()
    return np.fromiter(map(zlib.crc32, raw), dtype=np.int64, count=len(raw)) % buckets


def _commit_counts(
    folder: StageFolder[WordBucketCounts], unit_id: str, table: pa.Table, min_count: int, per_language: int
) -> Marker[WordBucketCounts]:
    """Sums a bucket and keeps the words that occur often enough in all languages together."""
    kept, counts = frequent_by_language(table, min_count, per_language)
    name = f"{unit_id}.parquet"
    with PartWriter(BUCKET_COUNTS, folder.path(name), name) as writer:
        writer.write(kept.cast(BUCKET_COUNTS))
        return folder.commit(unit_id, [writer.finish()], counts)


def _train(config: BuildConfig, folder: StageFolder[WordBucketCounts]) -> tuple[list[str], VocabularyCounts]:
    """The subwords, and counts of their training data."""
    settings = config.vocabulary
    markers = folder.finished()
    words: Counter[str] = Counter()
    for marker in markers.values():
        words.update(marker.counts.words_by_language)
    buckets = _Buckets(folder, list(markers))
    losing = []
    if _accents(config) == "strip":
        losing = languages_losing_marks(part for table in buckets for part in _by_language(table))
    if losing:
        message = "vocabulary.accents strip: %s lose vowel signs or voicing marks; strip_letters keeps them"
        logger.warning(message, ", ".join(losing))
    training = train(
        _smoothed(buckets, words, settings.smoothing),
        settings.size,
        settings.unused,
        max_letters=settings.max_letters,
    )
    counts = VocabularyCounts(
        words_by_language=dict(sorted(words.items())),
        languages_losing_marks=losing,
        distinct=sum(marker.counts.distinct for marker in markers.values()),
        frequent=sum(marker.counts.frequent for marker in markers.values()),
        left_out=sum(marker.counts.left_out for marker in markers.values()),
        words=training.words,
        words_pruned=training.words_pruned,
        pruned_share=training.pruned_share,
        words_too_long=training.words_too_long,
        alphabet=training.alphabet,
        characters_left_out=training.characters_left_out,
        left_out_share=training.left_out_share,
    )
    return training.pieces, counts


@dataclass(frozen=True)
class _Buckets:
    """The rows of BUCKET_COUNTS, read one bucket at a time in every iteration."""

    folder: StageFolder[WordBucketCounts]
    unit_ids: list[str]

    def __iter__(self) -> Iterator[pa.Table]:
        for unit_id in self.unit_ids:
            yield storage.parquet_file(self.folder.path(f"{unit_id}.parquet")).read()


def _smoothed(buckets: Iterable[pa.Table], words: Mapping[str, int], exponent: float) -> pa.Table:
    """Word counts of all languages together, sorted by word (`smooth_tables`).

    All rows of a word are in one bucket, so memory has one bucket and the result.
    """
    spared = pa.concat_tables(
        [BUCKET_COUNTS.empty_table(), *(table.filter(table["spared"]) for table in buckets)]
    )
    # The buckets need some of the spared rows together to cover all letters.
    parts = chain([needed_spares(map(_kept, buckets), spared)], map(_kept, buckets))
    smoothed = [smooth_tables(dict(_by_language(part)), words, exponent) for part in parts]
    return pa.concat_tables(smoothed).sort_by("word").combine_chunks()


def _kept(table: pa.Table) -> pa.Table:
    return table.filter(pc.invert(table["spared"]))


def _by_language(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    for lang in pc.unique(table["lang"]).to_pylist():
        yield lang, table.filter(pc.equal(table["lang"], lang)).select(["word", "count"])
