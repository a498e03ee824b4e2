"""Measures CPU seconds of every stage of a build, as rates for ``bertmill plan``.

    python -m benchmarks.rates.measure_rates 'FOLDER/*.xml.bz2' [--processes N] [--output FILE]

The stages run unchanged, with a loop in place of Ray Data, to time the work of one core (process time).
A core of a busy host is slower, because two hyperthreads share it and its clock is lower. So `--processes`
should be the cores of the build: all processes measure the same sample at the same time, and the rates are
those of the median. The training of the vocabulary, one task of a build, is timed when they have ended.

`--output` writes a file for `bertmill plan --rates`. `--write rates` puts the rates of the stages into
bertmill/planning/rates.json, and `--write all` also the ratios of the corpus, which only real dumps have.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.peak_memory import peak_resident_bytes
from bertmill.cli.argument_types import positive
from bertmill.planning.forecast import training_seconds
from bertmill.planning.rates import RATES_PATH, Rates
from cluster import storage
from cluster.jobs.config_file import validate
from pipeline.config import BuildConfig
from pipeline.engine import shuffle
from pipeline.engine.partitions import Partition, plan_partitions
from pipeline.sources.plan import plan_units
from pipeline.stages import dedup as stage_dedup
from pipeline.stages import extract as stage_extract
from pipeline.stages import instances as stage_instances
from pipeline.stages import split as stage_split
from pipeline.stages import templates as stage_templates
from pipeline.stages import vocabulary as stage_vocabulary
from pipeline.stages.bot_stubs import run_stubs
from pipeline.stages.near import run_near
from pipeline.wordpiece.character_table import character_table
from pipeline.wordpiece.vocabulary import accents_of
from schemas.arrays import I64

# Pages of one pattern that stay in the round of bot stubs. Few builds use it, so it is timed separately.
STUBS_KEPT = 1000


def map_in_process(items: Sequence[Any], work: Callable[[Any], Any], _size: Any = None) -> Iterator[Any]:
    """``work`` on one item after the other."""
    yield from map(work, items)


moved_bytes: dict[str, int] = {}
"""Stored bytes that the last shuffle moved."""


def recorded_partitions(sizes: I64, pending: I64) -> list[Partition]:
    """`plan_partitions`, which adds up what is moved."""
    partitions = plan_partitions(sizes, pending)
    moved_bytes["last"] = sum(partition.bytes for partition in partitions)
    return partitions


def without_ray_data() -> None:
    """Lets the stages use the loop above."""
    for module in (stage_templates, stage_extract, stage_split, shuffle):
        mock.patch.object(module, "map_items", map_in_process).start()
    mock.patch.object(shuffle, "plan_partitions", recorded_partitions).start()
    for module in (stage_extract, stage_vocabulary):
        mock.patch.object(module, "ray", _Immediately()).start()


class _Immediately:
    """Replaces ``ray`` where a stage runs one function as one task, such as the vocabulary's training."""

    put, get = staticmethod(lambda value: value), staticmethod(lambda value: value)
    training_seconds = 0.0
    train: Callable[[], Any]
    """The last call, to repeat it."""

    class remote:  # noqa: N801 - Ray spells it so
        """``ray.remote(function).remote(...)`` that runs immediately and is timed."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function

        def remote(self, *arguments: Any) -> Any:
            """The function's value."""
            _Immediately.train = staticmethod(partial(self._function, *arguments))
            began = time.process_time()
            result = _Immediately.train()
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
    # Every process makes these once for any amount of work, so they are not part of a rate.
    folding = config.vocabulary
    character_table(folding.cased, accents_of(folding.cased, folding.accents, trained=True))
    seconds: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = call()
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - began
        return result

    templates = timed("templates", lambda: stage_templates.run_templates(config, work, units))
    extracted = timed("extract", lambda: stage_extract.run_extract(config, work, units, templates))
    dedup = timed("dedup", lambda: stage_dedup.run_dedup(config, work, extracted))
    timed("stubs", lambda: run_stubs(work, ["rates"], extracted.parts, dedup.removals, STUBS_KEPT))
    timed("near", lambda: run_near(work, ["rates"], extracted.parts, dedup.removals, config.dedup.jaccard))
    split = timed("dedup", lambda: stage_split.run_split(config, work, extracted, dedup))
    vocabulary = timed("vocabulary", lambda: stage_vocabulary.run_vocabulary(config, work, extracted, dedup))
    instances = timed(
        "instances", lambda: stage_instances.run_instances(config, work, extracted, dedup, split, vocabulary)
    )
    assert vocabulary.counts is not None, "the vocabulary is trained"
    # One task for any number of cores.
    seconds["vocabulary"] -= _Immediately.training_seconds
    text = sum(part.text_bytes for part in extracted.parts)
    tokens = sum(entry.tokens for entry in instances.sets)
    copies = len(config.instances.lengths) * config.instances.passes
    sizes = {
        "shards": sum(entry.bytes for entry in instances.sets),
        "documents": sum(storage.size(part.uri) for part in extracted.parts),
    }
    return {
        "seconds": seconds,
        "vocabulary_training_seconds": _Immediately.training_seconds,
        "vocabulary_words": vocabulary.counts.words,
        "units": len(units),
        "compressed_mb": sum(unit.end - unit.start for unit in units) / 1e6,
        "wikitext_mb": sum(one.text_counts["raw_bytes"] for one in extracted.funnel.languages.values()) / 1e6,
        "documents": sum(part.rows for part in extracted.parts),
        "text_mb": text / 1e6,
        "written_tokens": tokens,
        "tokens_per_text_byte": tokens / copies / text,
        "documents_mb_per_text_mb": sizes["documents"] / text,
        "shard_bytes_per_token": sizes["shards"] / tokens,
        "moved_bytes_per_token": moved_bytes["last"] / (tokens / len(config.instances.lengths)),
        "peak_gb": peak_resident_bytes() / 1e9,
    }


def measure_alone(fields: dict[str, Any], together: Barrier) -> dict[str, Any]:
    """`measure` of a config, with the training of the vocabulary timed again after ``together`` is passed."""
    np.seterr(all="raise")
    without_ray_data()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(validate(BuildConfig, fields | {"output": f"{folder}/corpus"}, "arguments"))
        if together.wait() == 0:
            began = time.process_time()
            _Immediately.train()
            found["trained_alone"] = time.process_time() - began
    return found


def measure_together(fields: dict[str, Any], processes: int) -> dict[str, Any]:
    """The medians of ``processes`` processes that measure the same sample at the same time."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        together = manager.Barrier(processes)
        running = [pool.submit(measure_alone, fields, together) for _ in range(processes)]
        try:
            every = [next_found.result() for next_found in as_completed(running)]
        except BaseException:
            # The other processes wait for the failed one.
            together.abort()
            raise
    return medians(every)


def medians(every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians of what processes measured, and the time of the vocabulary that one trained alone."""
    found = dict(every[0])
    found["seconds"] = {name: median(one["seconds"][name] for one in every) for name in found["seconds"]}
    (found["vocabulary_training_seconds"],) = (
        one["trained_alone"] for one in every if "trained_alone" in one
    )
    return found


def update(rates: dict[str, Any], measured: dict[str, Any], origin: str) -> None:
    """Replaces the rates of the stages by the measured ones."""
    for name, stage in rates["build"]["stages"].items():
        if name in measured["seconds"]:
            stage["per_core_second"] = float(f"{measured[stage['amount']] / measured['seconds'][name]:.3g}")
    rates["build"]["measured"] = origin
    # A sample has few words, so its time is compared with that of the known machine for as many words.
    words = measured["vocabulary_words"] / 1e6
    expected = training_seconds(words, Rates.model_validate_json(json.dumps(rates)))
    training = rates["build"]["vocabulary_training"]
    slowness = measured["vocabulary_training_seconds"] / expected
    for name in ("base_seconds", "seconds_per_million_words"):
        training[name] = round(training[name] * slowness, 2)
    training["measured"] = f"scaled by {slowness:.2f}, as measured with {words:.2f} million words"


def update_ratios(rates: dict[str, Any], measured: dict[str, Any]) -> None:
    """Replaces the ratios of the corpus by the measured ones."""
    corpus = rates["corpus"]
    corpus["measured"] = f"ratios of the same run: {measured['compressed_mb']:.1f} MB compressed"
    corpus["text_mb_per_compressed_mb"] = float(f"{measured['text_mb'] / measured['compressed_mb']:.3g}")
    names = ("tokens_per_text_byte", "documents_mb_per_text_mb", "shard_bytes_per_token")
    for name in (*names, "moved_bytes_per_token"):
        corpus[name] = float(f"{measured[name]:.3g}")


def main() -> None:
    """Measures and prints. With --write, stores the rates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="+")
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="N", help="cores to keep busy (default: 1)"
    )
    parser.add_argument("--unit-bytes", type=int, default=4 << 20)
    parser.add_argument("--vocabulary", type=int, default=119_547)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE", help="file for `bertmill plan --rates`")
    parser.add_argument(
        "--write", choices=("rates", "all"), help="replace rates of bertmill/planning/rates.json"
    )
    arguments = parser.parse_args()
    fields = {
        "sources": [{"name": "w", "kind": "wikimedia", "paths": arguments.dumps}],
        "extraction": {"unit_bytes": arguments.unit_bytes},
        "vocabulary": {"size": arguments.vocabulary},
        "instances": {"passes": arguments.passes},
    }
    measured = measure_together(fields, arguments.processes)
    print(json.dumps(measured, indent=1))
    if arguments.output:
        write(RATES_PATH, arguments.output, measured, corpus=False, processes=arguments.processes)
    if arguments.write:
        corpus = arguments.write == "all"
        write(RATES_PATH, RATES_PATH, measured, corpus=corpus, processes=arguments.processes)


def write(before: Path, after: Path, measured: dict[str, Any], *, corpus: bool, processes: int) -> None:
    """Writes the rates in ``before`` with the measured ones to ``after``."""
    rates = json.loads(before.read_text())
    day = datetime.now(UTC).date().isoformat()
    size = f"{measured['compressed_mb']:.1f} MB of dumps"
    busy = f"{processes} processes at the same time, " if processes > 1 else ""
    update(rates, measured, f"CPU time of one core of a virtual machine ({cpu()}), {busy}{size}, {day}")
    if corpus:
        update_ratios(rates, measured)
    after.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
