"""Stage instances: documents to token ids, ids to buckets, buckets to shards of every length.

Token ids are shuffled by slot (`pipeline.instances.slots`), and each slot is committed by itself: a rerun
tokenizes again but sends, pairs and writes unfinished slots only.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import ray

from pipeline.commit import DataFile, StageFolder
from pipeline.config import BuildConfig
from pipeline.instances.bucket import TOKENIZED, BucketDocuments, identities
from pipeline.instances.counts import COUNTS_VERSION
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.instances.sampling import SamplingPlan
from pipeline.instances.sets import InstancesMade, collect, set_name
from pipeline.instances.slots import SlotPlan, plan_slots
from pipeline.losers import Gone
from pipeline.progress import Progress
from pipeline.ray_stage import BUCKET, Row, shuffle_units
from pipeline.selection import read_kept
from pipeline.shards import write_shard
from pipeline.stage_dedup import Deduplicated
from pipeline.stage_extract import Extracted, Part
from pipeline.stage_split import SplitCounts, split_of
from pipeline.stage_vocabulary import VocabularyReady
from pipeline.word_lists import copy_word_list, load_word_list
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import Vocabulary, load_vocabulary
from schemas.shards import SHARDS_VERSION

Flags = npt.NDArray[np.bool_]


def run_instances(
    config: BuildConfig,
    work_uri: str,
    extracted: Extracted,
    deduplicated: Deduplicated,
    split: SplitCounts,
    vocabulary: VocabularyReady,
) -> InstancesMade:
    """Makes what is not done yet and collects the sets of all slots."""
    slots = plan_slots(config, split)
    words = copy_word_list(config)
    inputs = [config.seed, COUNTS_VERSION, deduplicated.stage_hash, vocabulary.vocabulary.sha256, words]
    settings = config.instances.model_dump(mode="json")
    stage = StageFolder.create(work_uri, "instances", SHARDS_VERSION, *inputs, settings)
    done = stage.finished()
    pending = np.array([slots.name(slot) not in done for slot in range(slots.count)])
    left = int(pending.sum())
    progress = Progress(
        "instances", left, skipped=slots.count - left, amount_name="M tokens", amount_scale=1e6
    )
    gone = ray.put(deduplicated.gone)
    uri, cased, accents = vocabulary.uri, vocabulary.vocabulary.cased, vocabulary.vocabulary.accents

    def emit(row: Row) -> Iterator[pa.Table]:
        tokenizer = _tokenizer(uri, cased, accents)
        yield from tokenize_part(Part(**row), ray.get(gone), tokenizer, config, slots, pending)

    def reduce(slot: int, table: pa.Table) -> Row:
        known = _tokenizer(uri, cased, accents).vocabulary
        return {"tokens": make_slot(stage, slots, slot, table, config, known, words)}

    if left:
        parts = [vars(part) for part in extracted.parts]
        for result in shuffle_units(parts, emit, reduce, left, TOKENIZED):
            progress.advance(result["tokens"])
        for name in (slots.name(slot) for slot in np.flatnonzero(pending).tolist()):
            if stage.marker(name) is None:  # no document fell into it
                stage.commit(name, [], {"sets": {}, "counts": {}})
    return collect(config, slots, stage.finished(), words)


@lru_cache(maxsize=1)
def _tokenizer(uri: str, cased: bool, accents: Any) -> WordPieceTokenizer:
    """One tokenizer a process: its tables take a third of a second to make."""
    return WordPieceTokenizer(load_vocabulary(uri, cased, accents))


def tokenize_part(
    part: Part,
    gone: Gone,
    tokenizer: WordPieceTokenizer,
    config: BuildConfig,
    slots: SlotPlan,
    pending: Flags,
) -> Iterator[pa.Table]:
    """The documents of a part as token ids: a row for each copy of each pass whose slot is pending."""
    split = split_of(config)
    for table in read_kept(part, gone, ["key", "lang", "content_hash", "sentences"]):
        documents = _token_columns(table, tokenizer)
        held_out = split.is_validation(table["content_hash"].to_pylist())
        keys = identities(table["key"].to_pylist())
        for lang in pc.unique(table["lang"]).to_pylist():
            of_lang = np.asarray(pc.equal(table["lang"], lang))
            train, validation = np.flatnonzero(of_lang & ~held_out), np.flatnonzero(of_lang & held_out)
            first = slots.passes * slots.train.buckets
            places = [_places(slots.validation, lang, keys, validation, 0, first)]
            for number in range(slots.passes):
                first = number * slots.train.buckets
                places.append(_places(slots.train, lang, keys, train, number, first))
            rows, copies, slot = (np.concatenate(parts) for parts in zip(*places, strict=True))
            wanted = pending[slot]
            if wanted.any():
                yield _copies(documents, rows[wanted], copies[wanted], slot[wanted])


def _places(
    plan: SamplingPlan,
    lang: str,
    keys: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.int64],
    number: int,
    first: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row, copy number and slot of every copy of the documents ``rows`` in one pass."""
    if not rows.size:
        return rows, rows, rows
    copies = plan.copies(lang, keys[rows], number)
    repeated = np.repeat(rows, copies)
    copy = np.arange(repeated.size) - np.repeat(np.cumsum(copies) - copies, copies)
    return repeated, copy, first + plan.bucket(lang, keys[repeated], copy, number)


def _token_columns(table: pa.Table, tokenizer: WordPieceTokenizer) -> pa.Table:
    """Columns key, lang, token_ids, sentence_lengths; one row a document."""
    sentences = table["sentences"].combine_chunks()
    flat, offsets = tokenizer.encode_batch(sentences.flatten())
    document_ends = np.concatenate([[0], np.cumsum(np.asarray(sentences.value_lengths(), dtype=np.int64))])
    lengths = pa.array(np.diff(offsets).astype(np.int32))
    return pa.table(
        {
            "key": table["key"],
            "lang": table["lang"],
            "token_ids": pa.ListArray.from_arrays(pa.array(offsets[document_ends].astype(np.int32)), flat),
            "sentence_lengths": pa.ListArray.from_arrays(pa.array(document_ends.astype(np.int32)), lengths),
        }
    )


def _copies(documents: pa.Table, rows: Any, copies: Any, slot: Any) -> pa.Table:
    """A row for each copy; where that is every document once, the columns are not copied."""
    order = np.argsort(rows, kind="stable")
    if np.array_equal(rows[order], np.arange(documents.num_rows)):
        taken, copies, slot = documents, copies[order], slot[order]
    else:
        taken = documents.take(pa.array(rows))
    taken = taken.append_column("copy", pa.array(copies, pa.int32()))
    return taken.append_column(BUCKET, pa.array(slot, pa.int32())).select(TOKENIZED.names)


def make_slot(
    stage: StageFolder,
    slots: SlotPlan,
    slot: int,
    table: pa.Table,
    config: BuildConfig,
    vocabulary: Vocabulary,
    words: str | None,
) -> int:
    """Writes the shards of one slot and commits it; returns the number of tokens in their rows.

    ``words`` is the SHA-256 of the corpus' word list, if it has one.
    """
    _, pass_number, _ = slots.split_pass_bucket(slot)
    name = slots.name(slot)
    bucket = BucketDocuments.from_table(table)
    entries, counts, files = {}, {}, []
    segmenter = load_word_list(config.output, words, tuple(vocabulary.pieces)) if words else None
    for length in config.instances.lengths:
        settings = InstanceSettings.from_config(config.instances, length, vocabulary.pieces, segmenter)
        made = make_instances(bucket, settings, config.seed, pass_number)
        label = set_name(length.max_seq_length)
        counts[label] = {lang: account.as_dict() for lang, account in sorted(made.counts.items())}
        if made.table.num_rows:
            entry = write_shard(made.table, config.output, f"data/{label}/{name}.parquet")
            entries[label] = entry
            files.append(DataFile(entry["path"], entry["rows"], entry["bytes"], entry["sha256"]))
    stage.commit(name, files, {"sets": entries, "counts": counts})
    return sum(int(entry["tokens"]) for entry in entries.values())
