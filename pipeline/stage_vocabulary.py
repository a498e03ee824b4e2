"""Stage vocabulary: word counts by language over the training documents, then the WordPiece vocabulary."""

import logging
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import ray

from cluster import storage
from pipeline.commit import PartWriter, StageFolder
from pipeline.config import BuildConfig
from pipeline.losers import Gone
from pipeline.progress import Progress
from pipeline.ray_stage import BUCKET, Row, plain_errors, shuffle_units
from pipeline.selection import Split, read_kept
from pipeline.stage_dedup import Deduplicated
from pipeline.stage_extract import Extracted, Part
from pipeline.stage_split import split_of
from pipeline.wordpiece.character_table import Accents
from pipeline.wordpiece.letter_forms import needed_spares
from pipeline.wordpiece.training import train
from pipeline.wordpiece.vocabulary import (
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
    frequent_by_language,
    merge_word_counts,
    partial_word_counts,
    sum_word_counts,
)

logger = logging.getLogger("bertmill")

Folding = dict[str, Any]
Pending = npt.NDArray[np.int64]

TOKENIZER_FOLDER = "tokenizer"
PIECES = "pieces.txt"
BYTES_PER_BUCKET = 1 << 30

WORD_COUNTS = pa.schema(
    [
        pa.field("lang", pa.string(), nullable=False),
        pa.field("word", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
# Of a bucket: rows beyond the limits that have letters which no other row of the bucket has are ``spared``.
BUCKET_COUNTS = WORD_COUNTS.append(pa.field("spared", pa.bool_(), nullable=False))


@dataclass(frozen=True)
class VocabularyReady:
    """The vocabulary and where its files lie below the output."""

    vocabulary: Vocabulary
    uri: str
    path: str
    counts: dict[str, Any]


def run_vocabulary(
    config: BuildConfig, work_uri: str, extracted: Extracted, deduplicated: Deduplicated
) -> VocabularyReady:
    """Trains the vocabulary, or takes the one that the config names, and writes the tokenizer files."""
    settings = config.vocabulary
    if settings.path is not None:
        accents = accents_of(settings.cased, settings.accents, trained=False)
        given = load_vocabulary(settings.path, settings.cased)
        return _write(config, given.pieces, accents, {})
    split = vars(split_of(config))
    inputs = [deduplicated.stage_hash, settings.model_dump(mode="json"), split, BUCKET_COUNTS.names]
    stage = StageFolder.create(work_uri, "vocabulary", *inputs)
    marker = stage.marker("vocabulary")
    if marker is None:
        _count(config, stage, extracted, deduplicated)
        with plain_errors():
            pieces, counts = ray.get(ray.remote(_train).remote(config, stage))
        storage.put_bytes(stage.path(PIECES), vocabulary_bytes(pieces))
        marker = stage.commit("vocabulary", [], counts)
    pieces = storage.read_bytes(stage.path(PIECES)).decode().split("\n")[:-1]
    return _write(config, pieces, _accents(config), marker.counts)


def _accents(config: BuildConfig) -> Accents:
    return accents_of(config.vocabulary.cased, config.vocabulary.accents, trained=True)


def _write(
    config: BuildConfig, pieces: list[str], accents: Accents, counts: dict[str, Any]
) -> VocabularyReady:
    folder = storage.join(config.output, TOKENIZER_FOLDER)
    longest = max(length.max_seq_length for length in config.instances.lengths)
    vocabulary = write_tokenizer(
        folder, pieces, cased=config.vocabulary.cased, accents=accents, max_length=longest
    )
    path = f"{TOKENIZER_FOLDER}/{VOCABULARY_NAME}"
    return VocabularyReady(vocabulary, storage.join(config.output, path), path, counts)


def _count(config: BuildConfig, stage: StageFolder, extracted: Extracted, deduplicated: Deduplicated) -> None:
    size = sum(part.text_bytes for part in extracted.parts)
    buckets = max(1, -(-size // BYTES_PER_BUCKET))
    ids = [f"words-{bucket:05d}" for bucket in range(buckets)]
    done = stage.finished()
    pending = np.array([bucket for bucket in range(buckets) if ids[bucket] not in done], dtype=np.int64)
    progress = Progress(
        "vocabulary",
        len(pending),
        skipped=buckets - len(pending),
        amount_name="distinct words",
        amount_scale=1,
    )
    gone = ray.put(deduplicated.gone)
    split = split_of(config)
    folding: Folding = {"cased": config.vocabulary.cased, "accents": _accents(config)}
    settings = config.vocabulary
    per_language = -(-settings.max_words // buckets)

    def emit(row: Row) -> Iterator[pa.Table]:
        yield from _part_counts(Part(**row), ray.get(gone), split, folding, buckets, pending)

    def reduce(bucket: int, table: pa.Table) -> Row:
        return {"words": _commit_counts(stage, ids[bucket], table, settings.min_count, per_language)}

    if not len(pending):
        return
    parts = [vars(part) for part in extracted.parts]
    for result in shuffle_units(parts, emit, reduce, len(pending), WORD_COUNTS):
        progress.advance(result["words"])
    for bucket in pending.tolist():
        if stage.marker(ids[bucket]) is None:  # no word fell into it
            _commit_counts(stage, ids[bucket], WORD_COUNTS.empty_table(), 1, 1)


def _part_counts(
    part: Part, gone: Gone, split: Split, folding: Folding, buckets: int, pending: Pending
) -> Iterator[pa.Table]:
    """Word counts of the training documents of a part: one table for each language."""
    by_lang: dict[str, list[pa.Table]] = {}
    for table in read_kept(part, gone, ["lang", "content_hash", "sentences"]):
        train = table.filter(pa.array(~split.is_validation(table["content_hash"].to_pylist())))
        for lang in pc.unique(train["lang"]).to_pylist():
            sentences = pc.list_flatten(train.filter(pc.equal(train["lang"], lang))["sentences"])
            by_lang.setdefault(lang, []).append(sum_word_counts(partial_word_counts(sentences, **folding)))
    for lang, tables in by_lang.items():
        counts = sum_word_counts(tables) if len(tables) > 1 else tables[0]
        bucket = _word_bucket(counts["word"], buckets)
        counts = counts.append_column("lang", pa.array([lang] * counts.num_rows, pa.string()))
        counts = counts.append_column(BUCKET, pa.array(bucket, pa.int64()))
        yield counts.filter(pa.array(np.isin(bucket, pending)))


def _word_bucket(words: pa.ChunkedArray, buckets: int) -> Pending:
    raw = words.cast(pa.binary()).to_pylist()
    return np.fromiter(map(zlib.crc32, raw), dtype=np.int64, count=len(raw)) % buckets


def _commit_counts(
    stage: StageFolder, unit_id: str, table: pa.Table, min_count: int, per_language: int
) -> int:
    """Sums up a bucket, and keeps the words that occur often enough in all languages together."""
    kept, counts = frequent_by_language(table, min_count, per_language)
    name = f"{unit_id}.parquet"
    with PartWriter(BUCKET_COUNTS, stage.path(name), name) as writer:
        writer.write(kept.cast(BUCKET_COUNTS))
        stage.commit(unit_id, [writer.finish()], counts)
    return int(counts["distinct"])


def _train(config: BuildConfig, stage: StageFolder) -> tuple[list[str], dict[str, Any]]:
    counts, account = _smoothed(config, stage)
    training = train(
        counts,
        config.vocabulary.size,
        config.vocabulary.unused,
        max_letters=config.vocabulary.max_letters,
    )
    account |= {name: value for name, value in vars(training).items() if name != "pieces"}
    return training.pieces, account


def _smoothed(config: BuildConfig, stage: StageFolder) -> tuple[pa.Table, dict[str, Any]]:
    """The counts of all languages in one table, smoothed, and what the build accounts for."""
    buckets: list[pa.Table] = []
    totals = dict.fromkeys(("distinct", "frequent", "left_out"), 0)
    words: Counter[str] = Counter()
    for unit_id, marker in stage.finished().items():
        if not unit_id.startswith("words-"):
            continue
        totals = {name: totals[name] + marker.counts[name] for name in totals}
        words.update(marker.counts["words_by_language"])
        buckets.append(storage.parquet_file(stage.path(f"{unit_id}.parquet")).read())
    tables: dict[str, list[pa.Table]] = {}
    for table in _with_every_letter(buckets):
        for lang in pc.unique(table["lang"]).to_pylist():
            of_lang = table.filter(pc.equal(table["lang"], lang))
            tables.setdefault(lang, []).append(of_lang.select(["word", "count"]))
    by_lang = {lang: merge_word_counts(parts) for lang, parts in sorted(tables.items())}
    losing = languages_losing_marks(by_lang) if _accents(config) == "strip" else []
    if losing:
        message = "vocabulary.accents strip: %s lose vowel signs or voicing marks; strip_letters keeps them"
        logger.warning(message, ", ".join(losing))
    smoothed = smooth_tables(by_lang, words, config.vocabulary.smoothing)
    account = {"words_by_language": dict(sorted(words.items())), "languages_losing_marks": losing}
    return smoothed, {**account, **totals}


def _with_every_letter(buckets: list[pa.Table]) -> list[pa.Table]:
    """The rows of the buckets, and the spared ones that the letters of all together need."""
    kept = [table.filter(pc.invert(table["spared"])) for table in buckets]
    spared = [table.filter(table["spared"]) for table in buckets]
    return [*kept, needed_spares(kept, pa.concat_tables([BUCKET_COUNTS.empty_table(), *spared]))]
