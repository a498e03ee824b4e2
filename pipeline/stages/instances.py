"""Stage instances: tokenizes documents, moves token ids to slots, and writes shards of every length.

A shuffle moves the token ids to their slots (`pipeline.instances.slots`), and each slot is committed
separately. A rerun tokenizes only documents that were not moved before, and makes only the missing slots.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import BuildConfig
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import Removals
from pipeline.documents.selection import read_kept
from pipeline.engine.commit import DataFile, StageFolder
from pipeline.engine.progress import Progress
from pipeline.engine.shuffle import Shuffle
from pipeline.engine.shuffle_files import BUCKET
from pipeline.instances.bucket import TOKENIZED, BucketDocuments, identities
from pipeline.instances.counts import COUNTS_VERSION
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.instances.sampling import SamplingPlan
from pipeline.instances.sets import InstancesResult, SlotCounts, collect, set_name, shard_prefix
from pipeline.instances.shards import write_shard
from pipeline.instances.slots import SlotPlan, plan_slots, side_name
from pipeline.instances.word_lists import copy_word_list, load_word_list
from pipeline.stages.dedup import DedupResult
from pipeline.stages.extract import ExtractResult
from pipeline.stages.split import SplitResult, split_of
from pipeline.stages.vocabulary import VocabularyResult
from pipeline.wordpiece.character_table import Accents
from pipeline.wordpiece.hub_tokenizer import Encoder, open_encoder
from pipeline.wordpiece.vocabulary import Vocabulary
from schemas.arrays import I64, U64
from schemas.columns.shards import SHARDS_VERSION
from schemas.shard_tables import shard_path


def run_instances(
    config: BuildConfig,
    work_uri: str,
    extracted: ExtractResult,
    deduplicated: DedupResult,
    split: SplitResult,
    vocabulary: VocabularyResult,
) -> InstancesResult:
    """Makes the missing slots and collects the sets of all slots."""
    slots = plan_slots(config, split.languages)
    word_list = copy_word_list(config)
    inputs = [config.seed, COUNTS_VERSION, deduplicated.stage_hash, vocabulary.vocabulary.sha256, word_list]
    if vocabulary.tokenizer_sha256 is not None:
        inputs.append(vocabulary.tokenizer_sha256)
    settings = config.instances.model_dump(mode="json")
    folder = StageFolder.create(work_uri, "instances", SlotCounts, SHARDS_VERSION, *inputs, settings)
    finished = folder.finished()
    pending = np.array([slot for slot in range(slots.count) if slots.name(slot) not in finished], np.int64)
    to_do = len(pending)
    progress = Progress(
        "instances", to_do, skipped=slots.count - to_do, amount_name="M tokens", amount_scale=1e6
    )
    removals = deduplicated.removals
    uri, cased, accents = vocabulary.uri, vocabulary.vocabulary.cased, vocabulary.vocabulary.accents

    def emit(part: Part) -> Iterator[pa.Table]:
        tokenizer = _tokenizer(uri, cased, accents)
        yield from tokenize_part(part, removals, tokenizer, config, slots)

    def reduce(slot: int, table: pa.Table) -> int:
        if not table.num_rows:
            folder.commit(slots.name(slot), [], SlotCounts())
            return 0
        loaded = _tokenizer(uri, cased, accents).vocabulary
        return make_slot(folder, slots, slot, table, config, loaded, word_list)

    shuffle = Shuffle(folder.path("shuffle"), TOKENIZED, slots.count)
    for tokens in shuffle.run(extracted.parts, emit, reduce, pending, part_size):
        progress.advance(tokens)
    return collect(config, slots, folder.finished(), word_list)


@lru_cache(maxsize=1)
def _tokenizer(uri: str, cased: bool, accents: Accents | None) -> Encoder:
    """One tokenizer for each process, because building its tables takes a third of a second."""
    return open_encoder(uri, cased, accents)


def tokenize_part(
    part: Part,
    removals: Removals,
    tokenizer: Encoder,
    config: BuildConfig,
    slots: SlotPlan,
) -> Iterator[pa.Table]:
    """The documents of a part as token ids, with a row for each copy in each pass."""
    split = split_of(config)
    for table in read_kept(part, removals, ["key", "lang", "content_hash", "sentences"]):
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
            if rows.size:
                yield _copies(documents, rows, copies, slot)


def _places(
    plan: SamplingPlan, lang: str, keys: U64, rows: I64, pass_number: int, first_slot: int
) -> tuple[I64, I64, I64]:
    """Row, copy number and slot of every copy of the documents ``rows`` in one pass."""
    if not rows.size:
        return rows, rows, rows
    copies = plan.copies(lang, keys[rows], pass_number)
    repeated = np.repeat(rows, copies)
    copy = np.arange(repeated.size) - np.repeat(np.cumsum(copies) - copies, copies)
    return repeated, copy, first_slot + plan.bucket(lang, keys[repeated], copy, pass_number)


def _token_columns(table: pa.Table, tokenizer: Encoder) -> pa.Table:
    """Columns key, lang, token_ids and sentence_lengths, one row for each document."""
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


def _copies(documents: pa.Table, rows: I64, copies: I64, slot: I64) -> pa.Table:
    """A row for each copy. Returns the columns without copying them if each document occurs once."""
    order = np.argsort(rows, kind="stable")
    if np.array_equal(rows[order], np.arange(documents.num_rows)):
        table, copies, slot = documents, copies[order], slot[order]
    else:
        table = documents.take(pa.array(rows))
    table = table.append_column("copy", pa.array(copies, pa.int32()))
    return table.append_column(BUCKET, pa.array(slot, pa.int32())).select(TOKENIZED.names)


def make_slot(
    folder: StageFolder[SlotCounts],
    slots: SlotPlan,
    slot: int,
    table: pa.Table,
    config: BuildConfig,
    vocabulary: Vocabulary,
    word_list: str | None,
) -> int:
    """Writes the shards of one slot and commits it. Returns the number of tokens in their rows.

    ``word_list`` is the SHA-256 of the corpus's word list, if it has one.
    """
    split, pass_number, number = slots.split_pass_bucket(slot)
    bucket = BucketDocuments.from_table(table)
    counts = SlotCounts()
    segmenter = load_word_list(config.output, word_list, tuple(vocabulary.pieces)) if word_list else None
    for length in config.instances.lengths:
        settings = InstanceSettings.from_config(config.instances, length, vocabulary.pieces, segmenter)
        instances = make_instances(bucket, settings, config.seed, pass_number)
        label = set_name(length.max_seq_length)
        counts.languages[label] = dict(sorted(instances.counts.items()))
        if instances.table.num_rows:
            path = shard_path(shard_prefix(label, side_name(split, pass_number)), number)
            counts.shards[label] = write_shard(instances.table, config.output, path)
    files = [DataFile(shard.path, shard.rows, shard.bytes, shard.sha256) for shard in counts.shards.values()]
    folder.commit(slots.name(slot), files, counts)
    return sum(shard.tokens for shard in counts.shards.values())
