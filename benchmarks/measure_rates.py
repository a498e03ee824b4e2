"""CPU seconds of every stage of a build in one process, as rates for ``bertmill plan``.

    python benchmarks/measure_rates.py 'FOLDER/*.xml.bz2' [--unit-bytes N] [--passes N] [--write]

The stages run as they are, with Ray Data replaced by a loop, so that what is timed is the work of one core
(process time: it hardly depends on what else the machine does). --write puts them into bertmill/rates.json.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from benchmarks.peak_memory import peak_resident_bytes
from cluster import storage
from cluster.config_file import validate
from pipeline import (
    committed_shuffle,
    stage_dedup,
    stage_extract,
    stage_instances,
    stage_near,
    stage_split,
    stage_vocabulary,
)
from pipeline.config import BuildConfig
from pipeline.plan import plan_units
from pipeline.ray_stage import BUCKET, Row
from pipeline.stage_stubs import run_stubs
from pipeline.wordpiece.character_table import character_table
from pipeline.wordpiece.vocabulary import accents_of

RATES = Path(__file__).resolve().parents[1] / "bertmill" / "rates.json"
# Pages of one pattern that stay in the round of bot stubs; few builds have it, it is timed beside the rest.
STUBS_KEPT = 1000


def map_in_process(items: list[Row], work: Callable[[Row], Row]) -> Iterator[Row]:
    """``work`` on one item after the other."""
    yield from map(work, items)


def shuffle_in_process(
    items: list[Row],
    emit: Callable[[Row], Iterator[pa.Table]],
    reduce: Callable[[int, pa.Table], Row],
    _buckets: int,
    _schema: pa.Schema,
) -> Iterator[Row]:
    """All that is emitted, grouped by bucket."""
    tables = [table for item in items for table in emit(item) if table.num_rows]
    if not tables:
        return
    table = pa.concat_tables(tables).combine_chunks()
    for bucket in sorted(pc.unique(table[BUCKET]).to_pylist()):
        yield reduce(bucket, table.filter(pc.equal(table[BUCKET], bucket)))


def without_ray_data() -> None:
    """Lets the stages use the loops above."""
    for stage in (stage_extract, stage_split):
        stage.map_units = map_in_process  # type: ignore[attr-defined]
    for stage in (stage_vocabulary, stage_instances, committed_shuffle):
        stage.shuffle_units = shuffle_in_process  # type: ignore[attr-defined]
    stage_vocabulary.ray = _Immediately()  # type: ignore[attr-defined]
    stage_near.ray = _InPlace()  # type: ignore[attr-defined]


class _InPlace:
    """Stands for ``ray`` where a stage runs one function as one task."""

    put, get = staticmethod(lambda value: value), staticmethod(lambda value: value)

    @staticmethod
    def remote(function: Callable[..., Any]) -> Any:
        """``ray.remote(function).remote(...)`` that runs at once."""
        return SimpleNamespace(remote=function)


class _Immediately:
    """Stands for ``ray`` where a stage runs one function as one task: here, the vocabulary's training."""

    put, get = staticmethod(lambda value: value), staticmethod(lambda value: value)
    training_seconds = 0.0

    class remote:  # noqa: N801 - Ray spells it so
        """``ray.remote(function).remote(...)`` that runs at once, timed."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function

        def remote(self, *words: Any) -> Any:
            """The function's value."""
            began = time.process_time()
            result = self._function(*words)
            _Immediately.training_seconds += time.process_time() - began
            return result


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def measure(config: BuildConfig) -> dict[str, Any]:
    """CPU seconds by stage, and the amounts of work."""
    work = storage.join(config.output, "work")
    _Immediately.training_seconds = 0.0
    units = plan_units(config)
    # Made once by every process, whatever it has to do: no part of a rate.
    folding = config.vocabulary
    character_table(folding.cased, accents_of(folding.cased, folding.accents, trained=True))
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = call()
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - began
        return result

    extracted = timed("extract", lambda: stage_extract.run_extract(config, work, units))
    losers = timed("dedup", lambda: stage_dedup.run_dedup(config, work, extracted))
    timed("stubs", lambda: run_stubs(work, ["rates"], extracted.parts, losers.losers, STUBS_KEPT))
    split = timed("dedup", lambda: stage_split.run_split(config, work, extracted, losers))
    vocabulary = timed("vocabulary", lambda: stage_vocabulary.run_vocabulary(config, work, extracted, losers))
    made = timed(
        "instances", lambda: stage_instances.run_instances(config, work, extracted, losers, split, vocabulary)
    )
    # One task, whatever the number of cores: it grows with the vocabulary, not with the corpus.
    seconds["vocabulary"] -= _Immediately.training_seconds
    text = sum(part.text_bytes for part in extracted.parts)
    tokens = sum(shard["tokens"] for one in made.sets for shard in one["shards"])
    copies = len(config.instances.lengths) * config.instances.passes
    sizes = {
        "shards": sum(shard["bytes"] for one in made.sets for shard in one["shards"]),
        "documents": sum(storage.size(part.uri) for part in extracted.parts),
    }
    return {
        "seconds": seconds,
        "vocabulary_training_seconds": _Immediately.training_seconds,
        "units": len(units),
        "compressed_mb": sum(unit.end - unit.start for unit in units) / 1e6,
        "wikitext_mb": sum(one.extra["raw_bytes"] for one in extracted.funnel.languages.values()) / 1e6,
        "documents": sum(part.rows for part in extracted.parts),
        "text_mb": text / 1e6,
        "made_tokens": tokens,
        "tokens_per_text_byte": tokens / copies / text,
        "documents_mb_per_text_mb": sizes["documents"] / text,
        "shard_bytes_per_token": sizes["shards"] / tokens,
        "peak_gb": peak_resident_bytes() / 1e9,
    }


def update(rates: dict[str, Any], found: dict[str, Any], what: str) -> None:
    """Puts what was measured in place of what stood in ``rates``."""
    for name, stage in rates["build"]["stages"].items():
        if name in found["seconds"]:
            stage["per_core_second"] = float(f"{found[stage['amount']] / found['seconds'][name]:.3g}")
    rates["build"]["stages"]["vocabulary"]["serial_seconds"] = round(found["vocabulary_training_seconds"], 1)
    rates["build"]["measured"] = what
    corpus = rates["corpus"]
    corpus["measured"] = f"ratios of the same run: {found['compressed_mb']:.1f} MB compressed"
    corpus["documents_per_compressed_mb"] = float(f"{found['documents'] / found['compressed_mb']:.3g}")
    corpus["text_mb_per_compressed_mb"] = float(f"{found['text_mb'] / found['compressed_mb']:.3g}")
    for name in ("tokens_per_text_byte", "documents_mb_per_text_mb", "shard_bytes_per_token"):
        corpus[name] = float(f"{found[name]:.3g}")


def main() -> None:
    """Measures and prints; with --write, keeps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="+")
    parser.add_argument("--unit-bytes", type=int, default=4 << 20)
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    np.seterr(all="raise")
    without_ray_data()
    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "output": f"{folder}/corpus",
            "sources": [{"name": "w", "kind": "wikimedia", "paths": arguments.dumps}],
            "extraction": {"unit_bytes": arguments.unit_bytes},
            "vocabulary": {"size": arguments.vocabulary},
            "instances": {"passes": arguments.passes},
        }
        ray.init(
            address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        found = measure(validate(BuildConfig, fields, "arguments"))
        ray.shutdown()
    print(json.dumps(found, indent=1))
    if arguments.write:
        rates = json.loads(RATES.read_text())
        day = datetime.now(UTC).date().isoformat()
        size = f"{found['compressed_mb']:.1f} MB of dumps"
        what = f"CPU time of one core of a virtual machine ({cpu()}), {size}, {day}"
        update(rates, found, what)
        RATES.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
