"""What came of all slots: the sets of the manifest and the counts of each, read off their markers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.commit import Marker
from pipeline.config import BuildConfig, SequenceLength
from pipeline.instances.counts import InstanceCounts, add_counts
from pipeline.instances.sampling import SamplingPlan
from pipeline.instances.slots import SlotPlan


@dataclass(frozen=True)
class InstancesMade:
    """The stage's result: the manifest's sets, and the counts of each set by language."""

    sets: list[dict[str, Any]]
    counts: dict[str, dict[str, InstanceCounts]]
    sampling: SamplingPlan
    words: str | None
    """SHA-256 of the word list, if there is one."""


def set_name(max_seq_length: int) -> str:
    """The folder and dataset config of one length."""
    return f"len{max_seq_length}"


def collect(
    config: BuildConfig, slots: SlotPlan, markers: Mapping[str, Marker], words: str | None
) -> InstancesMade:
    """The manifest's sets in order, and the counts by set and language, from the ``markers`` of all slots."""
    sets = []
    counts: dict[str, dict[str, InstanceCounts]] = {}
    for length in config.instances.lengths:
        label = set_name(length.max_seq_length)
        for split, number in [*(("train", number) for number in range(slots.passes)), ("validation", 0)]:
            chosen = [
                markers[slots.name(slot)]
                for slot in range(slots.count)
                if slots.split_pass_bucket(slot)[:2] == (split, number)
            ]
            shards = [marker.counts["sets"][label] for marker in chosen if label in marker.counts["sets"]]
            sets.append(_set_entry(label, split, number, length, shards))
            total = counts.setdefault(f"{label}/{split}/{number}", {})
            for marker in chosen:
                _add_marker(total, marker, label)
    return InstancesMade(sets, counts, slots.train, words)


def _set_entry(
    label: str, split: str, number: int, length: SequenceLength, shards: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": label,
        "split": split,
        "max_seq_length": length.max_seq_length,
        "max_predictions": length.max_predictions,
        "pass": number,
        "rows": sum(shard["rows"] for shard in shards),
        "tokens": sum(shard["tokens"] for shard in shards),
        "shards": shards,
    }


def _add_marker(total: dict[str, InstanceCounts], marker: Marker, label: str) -> None:
    by_lang = marker.counts["counts"].get(label, {})
    add_counts(total, {lang: InstanceCounts.from_dict(values) for lang, values in by_lang.items()})


def totals(counts: dict[str, InstanceCounts]) -> InstanceCounts:
    """All languages of one set together."""
    total = InstanceCounts()
    for account in counts.values():
        total.add(account)
    return total


def texts_by_language(made: InstancesMade) -> dict[str, InstanceCounts]:
    """Language -> what came in: every document of every pass and side of the split, copies included.

    One length stands for all, since all lengths are made of the same tokens.
    """
    first = next(iter(made.counts), "").partition("/")[0]
    result: dict[str, InstanceCounts] = {}
    for name, by_lang in made.counts.items():
        if name.partition("/")[0] == first:
            add_counts(result, by_lang)
    return result


def rows_by_language(made: InstancesMade) -> dict[str, Counter[str]]:
    """Language -> rows and row tokens over all sets."""
    result: dict[str, Counter[str]] = {}
    for by_lang in made.counts.values():
        for lang, account in by_lang.items():
            counter = result.setdefault(lang, Counter())
            counter.update({"instances": account.rows, "tokens": account.row_tokens})
    return result
