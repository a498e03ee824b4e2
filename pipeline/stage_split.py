"""Stage split: documents and bytes by language on each side of the held-out split, after dedup.

What sampling and the number of buckets are planned from, so it is exact and has a marker of its own.
"""

from collections import Counter

import numpy as np
import pyarrow.compute as pc
import ray

from pipeline.commit import StageFolder
from pipeline.config import BuildConfig
from pipeline.losers import Gone
from pipeline.ray_stage import Row, map_units
from pipeline.selection import Split, read_kept
from pipeline.stage_dedup import Deduplicated
from pipeline.stage_extract import Extracted, Part

SplitCounts = dict[str, dict[str, int]]
COUNTED = ("train_documents", "train_bytes", "validation_documents", "validation_bytes")


def split_of(config: BuildConfig) -> Split:
    """The held-out split that the config asks for."""
    return Split(config.seed, config.instances.validation_share)


def run_split(
    config: BuildConfig, work_uri: str, extracted: Extracted, deduplicated: Deduplicated
) -> SplitCounts:
    """Language -> the four counts of COUNTED, languages in the order of their codes."""
    split = split_of(config)
    stage = StageFolder.create(work_uri, "split", deduplicated.stage_hash, vars(split))
    marker = stage.marker("split")
    if marker is None:
        gone = ray.put(deduplicated.gone)

        def work(row: Row) -> Row:
            return {"counts": list(_count(Part(**row), ray.get(gone), split).items())}

        total: Counter[tuple[str, str]] = Counter()
        for result in map_units([vars(part) for part in extracted.parts], work):
            for (lang, name), count in result["counts"]:
                total[lang, name] += int(count)
        langs = sorted({lang for lang, _ in total})
        counts = {lang: {name: total[lang, name] for name in COUNTED} for lang in langs}
        marker = stage.commit("split", [], counts)
    return marker.counts


def _count(part: Part, gone: Gone, split: Split) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for table in read_kept(part, gone, ["lang", "content_hash", "text_bytes"]):
        held_out = split.is_validation(table["content_hash"].to_pylist())
        sizes = np.asarray(table["text_bytes"], dtype=np.int64)
        for lang in pc.unique(table["lang"]).to_pylist():
            of_lang = np.asarray(pc.equal(table["lang"], lang))
            for name, rows in (("train", of_lang & ~held_out), ("validation", of_lang & held_out)):
                counts[lang, f"{name}_documents"] += int(rows.sum())
                counts[lang, f"{name}_bytes"] += int(sizes[rows].sum())
    return counts
