"""The sets of the manifest and their counts, collected from the markers of all slots."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.config import BuildConfig, SequenceLength
from pipeline.engine.commit import Marker
from pipeline.instances.counts import add_counts
from pipeline.instances.sampling import SamplingPlan
from pipeline.instances.shards import WrittenShard
from pipeline.instances.slots import SlotPlan, side_name
from schemas.columns.shards import ROW_GROUP_ROWS
from schemas.instance_counts import InstanceCounts
from schemas.manifest import SequenceSet, ShardTableFile
from schemas.shard_tables import ShardTable


@dataclass(frozen=True)
class SlotCounts:
    """The shards and counts of one slot, by the name of their set (`set_name`)."""

    shards: dict[str, WrittenShard] = field(default_factory=dict)
    languages: dict[str, dict[str, InstanceCounts]] = field(default_factory=dict)
    """Set name -> language -> counts."""


@dataclass(frozen=True)
class InstancesResult:
    """The result of the stage."""

    sets: list[SequenceSet]
    shard_tables: dict[str, bytes]
    """Path below the corpus -> the file of a set's shard table."""
    counts: dict[str, dict[str, InstanceCounts]]
    """Set label (name/split/pass) -> language -> counts."""
    sampling: SamplingPlan
    word_list: str | None
    """SHA-256 of the word list, or None without one."""


def set_name(max_seq_length: int) -> str:
    """The folder and the Hugging Face dataset config of one length.

    >>> set_name(128)
    'len128'
    """
    return f"len{max_seq_length}"


def collect(
    config: BuildConfig, slots: SlotPlan, markers: Mapping[str, Marker[SlotCounts]], word_list: str | None
) -> InstancesResult:
    """The manifest's sets in order and the counts by set and language, from the ``markers`` of all slots."""
    sets: list[SequenceSet] = []
    tables: dict[str, bytes] = {}
    counts: dict[str, dict[str, InstanceCounts]] = {}
    for length in config.instances.lengths:
        passes = [("train", number) for number in range(slots.passes)]
        for split, number in [*passes, ("validation", 0)]:
            chosen = {
                slots.split_pass_bucket(slot)[2]: markers[slots.name(slot)].counts
                for slot in range(slots.count)
                if slots.split_pass_bucket(slot)[:2] == (split, number)
            }
            entry, table = _set_entry(length, "train" if split == "train" else "validation", number, chosen)
            sets.append(entry)
            tables[entry.shards.path] = table
            total = counts.setdefault(entry.label, {})
            for slot_counts in chosen.values():
                add_counts(total, slot_counts.languages.get(entry.name, {}))
    return InstancesResult(sets, tables, counts, slots.train, word_list)


def _set_entry(
    length: SequenceLength,
    split: Literal["train", "validation"],
    number: int,
    slots: Mapping[int, SlotCounts],
) -> tuple[SequenceSet, bytes]:
    """A set and the file of its shard table, from its slots by bucket."""
    name, side = set_name(length.max_seq_length), side_name(split, number)
    numbered = [(bucket, slot.shards[name]) for bucket, slot in slots.items() if name in slot.shards]
    shards = [shard for _, shard in numbered]
    languages: Counter[str] = Counter()
    for shard in shards:
        languages.update(shard.languages)
    prefix = shard_prefix(name, side)
    table = ShardTable.of(prefix, numbered).encode()
    entry = SequenceSet(
        name=name,
        split=split,
        max_seq_length=length.max_seq_length,
        max_predictions=length.max_predictions,
        pass_number=number,
        rows=sum(shard.rows for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        languages=dict(sorted(languages.items())),
        shards=ShardTableFile(
            path=f"manifest/{name}-{side}.parquet",
            sha256=hashlib.sha256(table).hexdigest(),
            count=len(shards),
            prefix=prefix,
            row_group_rows=ROW_GROUP_ROWS,
        ),
    )
    return entry, table


def shard_prefix(name: str, side: str) -> str:
    """The prefix of the paths of all shards of the set ``name``, on one side of the split (`side_name`).

    >>> shard_prefix("len128", "train-p00")
    'data/len128/train-p00-'
    """
    return f"data/{name}/{side}-"


def totals(counts: Mapping[str, InstanceCounts]) -> InstanceCounts:
    """The counts of all languages together."""
    total = InstanceCounts()
    for of_lang in counts.values():
        total.add(of_lang)
    return total


def texts_by_language(result: InstancesResult) -> dict[str, InstanceCounts]:
    """Language -> input counts over all passes and both sides of the split, copies included.

    The counts are those of the first length, since all lengths use the same tokens.
    """
    first = result.sets[0].name
    total: dict[str, InstanceCounts] = {}
    for entry in result.sets:
        if entry.name == first:
            add_counts(total, result.counts[entry.label])
    return total


def sequences_by_language(result: InstancesResult) -> dict[str, InstanceCounts]:
    """Language -> counts over all sets."""
    total: dict[str, InstanceCounts] = {}
    for counts in result.counts.values():
        add_counts(total, counts)
    return total
