"""Stage vocabulary: word counts by language over the training documents, then the WordPiece vocabulary."""

import zlib
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
from pipeline.progress import Progress
from pipeline.ray_stage import BUCKET, Row, plain_errors, shuffle_units
from pipeline.selection import Split, read_kept
from pipeline.stage_dedup import Deduplicated
from pipeline.stage_extract import Extracted, Part
from pipeline.stage_split import split_of
from pipeline.vocabulary import (
    VOCABULARY_NAME,
    Vocabulary,
    load_vocabulary,
    merge_word_counts,
    smooth_counts,
    vocabulary_bytes,
    word_counts,
    write_tokenizer,
)
from pipeline.wordpiece_training import train

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
        given = load_vocabulary(settings.path, settings.cased)
        return _write(config, given.pieces, {})
    split = vars(split_of(config))
    inputs = [deduplicated.stage_hash, settings.model_dump(mode="json"), split]
    stage = StageFolder.create(work_uri, "vocabulary", *inputs)
    marker = stage.marker("vocabulary")
    if marker is None:
        _count(config, stage, extracted, deduplicated)
        with plain_errors():
            pieces, counts = ray.get(ray.remote(_train).remote(config, stage))
        storage.put_bytes(stage.path(PIECES), vocabulary_bytes(pieces))
        marker = stage.commit("vocabulary", [], counts)
    pieces = storage.read_bytes(stage.path(PIECES)).decode().split("\n")[:-1]
    return _write(config, pieces, marker.counts)


def _write(config: BuildConfig, pieces: list[str], counts: dict[str, Any]) -> VocabularyReady:
    folder = storage.join(config.output, TOKENIZER_FOLDER)
    longest = max(length.max_seq_length for length in config.instances.lengths)
    vocabulary = write_tokenizer(folder, pieces, cased=config.vocabulary.cased, max_length=longest)
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
    losers = ray.put(deduplicated.losers)
    split = split_of(config)
    folding: Folding = {"cased": config.vocabulary.cased}
    min_count = config.vocabulary.min_count

    def emit(row: Row) -> Iterator[pa.Table]:
        yield from _part_counts(Part(**row), ray.get(losers), split, folding, buckets, pending)

    def reduce(bucket: int, table: pa.Table) -> Row:
        return {"words": _commit_counts(stage, ids[bucket], table, min_count)}

    if not len(pending):
        return
    for result in shuffle_units([vars(part) for part in extracted.parts], emit, reduce, len(pending)):
        progress.advance(result["words"])
    for bucket in pending.tolist():
        if stage.marker(ids[bucket]) is None:  # no word fell into it
            _commit_counts(stage, ids[bucket], WORD_COUNTS.empty_table(), min_count)


def _part_counts(
    part: Part, losers: pa.Table, split: Split, folding: Folding, buckets: int, pending: Pending
) -> Iterator[pa.Table]:
    """Word counts of the training documents of a part: one table for each language."""
    by_lang: dict[str, list[pa.Table]] = {}
    for table in read_kept(part, losers, ["lang", "content_hash", "sentences"]):
        train = table.filter(pa.array(~split.is_validation(table["content_hash"].to_pylist())))
        for lang in pc.unique(train["lang"]).to_pylist():
            sentences = pc.list_flatten(train.filter(pc.equal(train["lang"], lang))["sentences"])
            by_lang.setdefault(lang, []).append(word_counts(sentences, **folding))
    for lang, tables in by_lang.items():
        counts = merge_word_counts(tables)
        bucket = _word_bucket(counts["word"], buckets)
        counts = counts.append_column("lang", pa.array([lang] * counts.num_rows, pa.string()))
        counts = counts.append_column(BUCKET, pa.array(bucket, pa.int64()))
        yield counts.filter(pa.array(np.isin(bucket, pending)))


def _word_bucket(words: pa.ChunkedArray, buckets: int) -> Pending:
    return np.array([zlib.crc32(word.encode()) % buckets for word in words.to_pylist()], dtype=np.int64)


def _commit_counts(stage: StageFolder, unit_id: str, table: pa.Table, min_count: int) -> int:
    """Sums up a bucket; a word is kept when all languages together have it often enough."""
    summed = table.group_by(["lang", "word"]).aggregate([("count", "sum")])
    summed = summed.rename_columns({"count_sum": "count"}).select(WORD_COUNTS.names)
    totals = summed.group_by("word").aggregate([("count", "sum")])
    frequent = totals.filter(pc.greater_equal(totals["count_sum"], min_count))["word"]
    kept = summed.filter(pc.is_in(summed["word"], value_set=frequent.combine_chunks()))
    kept = kept.sort_by([("lang", "ascending"), ("word", "ascending")])
    name = f"{unit_id}.parquet"
    with PartWriter(WORD_COUNTS, stage.path(name), name) as writer:
        writer.write(kept)
        counts = {"distinct": totals.num_rows, "frequent": len(frequent)}
        stage.commit(unit_id, [writer.finish()], counts)
    return int(totals.num_rows)


def _train(config: BuildConfig, stage: StageFolder) -> tuple[list[str], dict[str, Any]]:
    by_lang: dict[str, dict[str, int]] = {}
    totals = {"distinct": 0, "frequent": 0}
    for unit_id, marker in stage.finished().items():
        if not unit_id.startswith("words-"):
            continue
        totals = {name: totals[name] + marker.counts[name] for name in totals}
        table = storage.parquet_file(stage.path(f"{unit_id}.parquet")).read()
        for lang in pc.unique(table["lang"]).to_pylist():
            rows = table.filter(pc.equal(table["lang"], lang))
            by_lang.setdefault(lang, {}).update(
                zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True)
            )
    smoothed = smooth_counts(by_lang, config.vocabulary.smoothing)
    training = train(smoothed, config.vocabulary.size, config.vocabulary.unused)
    account = {name: value for name, value in vars(training).items() if name != "pieces"}
    words = {lang: sum(counts.values()) for lang, counts in sorted(by_lang.items())}
    return training.pieces, {**account, **totals, "words_by_language": words}
