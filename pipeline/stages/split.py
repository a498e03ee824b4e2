"""Stage split: counts documents and bytes of each language on each side of the held-out split, after dedup.

Sampling and the number of buckets depend on these counts, so they are exact and committed separately.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from pipeline.config import BuildConfig
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import Removals
from pipeline.documents.selection import read_kept
from pipeline.documents.split import Split
from pipeline.engine.commit import StageFolder
from pipeline.engine.ray_data import map_items
from pipeline.instances.slots import SplitCounts
from pipeline.stages.dedup import DedupResult
from pipeline.stages.extract import ExtractResult

_Key = tuple[str, str]


@dataclass(frozen=True)
class SplitResult:
    """The counts of each language, in the order of the language codes."""

    languages: dict[str, SplitCounts]


def split_of(config: BuildConfig) -> Split:
    """The held-out split of the config."""
    return Split(config.seed, config.instances.validation_share)


def run_split(
    config: BuildConfig, work_uri: str, extracted: ExtractResult, deduplicated: DedupResult
) -> SplitResult:
    """Counts the documents of all parts, unless an earlier run has counted them."""
    split = split_of(config)
    folder = StageFolder.create(work_uri, "split", SplitResult, deduplicated.stage_hash, vars(split))
    marker = folder.marker("split")
    if marker is None:
        removals = deduplicated.removals

        def work(part: Part) -> Counter[_Key]:
            return count_part(part, removals, split)

        total: Counter[_Key] = Counter()
        for counts in map_items(extracted.parts, work, part_size):
            total.update(counts)
        languages: dict[str, SplitCounts] = {}
        for (lang, field), count in sorted(total.items()):
            languages[lang] = replace(languages.get(lang, SplitCounts()), **{field: count})
        marker = folder.commit("split", [], SplitResult(languages))
    return marker.counts


def count_part(part: Part, removals: Removals, split: Split) -> Counter[_Key]:
    """(language, field of SplitCounts) -> count."""
    counts: Counter[_Key] = Counter()
    for table in read_kept(part, removals, ["lang", "content_hash", "text_bytes"]):
        held_out = split.is_validation(table["content_hash"].to_pylist())
        sizes = np.asarray(table["text_bytes"], dtype=np.int64)
        for lang in pc.unique(table["lang"]).to_pylist():
            of_lang = np.asarray(pc.equal(table["lang"], lang))
            for side, rows in (("train", of_lang & ~held_out), ("validation", of_lang & held_out)):
                counts[lang, f"{side}_documents"] += int(rows.sum())
                counts[lang, f"{side}_bytes"] += int(sizes[rows].sum())
    return counts
