"""The stages of a corpus build, in order."""

import logging
import time
from typing import Any

import yaml

from cluster import storage
from cluster.job_paths import lasting
from cluster.metrics import BuildMetrics
from cluster.ray_connection import connect, quiet_ray_data, use_all_cpus
from pipeline.claim import Claim
from pipeline.config import BuildConfig
from pipeline.instances.counts import pair_warnings
from pipeline.plan import plan_units
from pipeline.progress import Progress, clock, recorded, watched_by
from pipeline.publish import StageResults, publish
from pipeline.ray_stage import persistently
from pipeline.report.tables import closing_table, plan_table
from pipeline.stage_contamination import evaluation_files, evaluation_texts
from pipeline.stage_dedup import run_dedup
from pipeline.stage_extract import run_extract
from pipeline.stage_instances import run_instances
from pipeline.stage_split import run_split
from pipeline.stage_vocabulary import run_vocabulary
from pipeline.units import Unit
from pipeline.word_lists import read_word_list
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.manifest import MANIFEST_NAME

LOG = logging.getLogger("bertmill.build")


def dry_run(config: BuildConfig) -> str:
    """The resolved config and the planned units, as text. Reads sources, writes nothing."""
    resolved = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{resolved}\n{plan_table(plan_units(config))}"


def build(config: BuildConfig, num_cpus: int | None = None) -> str:
    """Runs all stages and returns the closing table. Raises BertmillError on a user's mistake."""
    started = time.monotonic()
    config = config.model_copy(update={"output": lasting(config.output)})
    claim = Claim.of(config)
    _check_side_files(config)
    claim.check(config.output)
    units = plan_units(config)
    storage.end_stale_uploads(config.output)
    connect(num_cpus=num_cpus)
    quiet_ray_data()
    use_all_cpus()
    # The output's last folder names the build on Ray's metrics endpoint.
    name = config.output.rstrip("/").rpartition("/")[2]
    with BuildMetrics(name) as metrics, watched_by(metrics), recorded() as times:
        manifest = _run_stages(config, claim, units, times)
    LOG.info("build: manifest written to %s", storage.join(config.output, MANIFEST_NAME))
    took = clock(time.monotonic() - started)
    return f"{closing_table(manifest)}\n\nbuilt in {took}: {storage.join(config.output, MANIFEST_NAME)}"


def _check_side_files(config: BuildConfig) -> None:
    """What only a late stage reads is wrong at once, not after hours. Raises BertmillError."""
    if config.vocabulary.path is not None:
        load_vocabulary(config.vocabulary.path, config.vocabulary.cased)
    read_word_list(config)
    for uri in evaluation_files(config.dedup.evaluation):
        for _ in evaluation_texts(uri):
            pass


def _run_stages(
    config: BuildConfig, claim: Claim, units: list[Unit], times: list[Progress]
) -> dict[str, Any]:
    """All stages in order, each going on where it was; the manifest."""
    work = storage.join(config.output, "work")
    extracted = persistently("extract", lambda: run_extract(config, work, units))
    deduplicated = persistently("dedup", lambda: run_dedup(config, work, extracted))
    split = persistently("split", lambda: run_split(config, work, extracted, deduplicated))
    # From here on names are shared: tokenizer, shards, manifest.
    claim.take(config.output)
    vocabulary = persistently("vocabulary", lambda: run_vocabulary(config, work, extracted, deduplicated))
    made = persistently(
        "instances", lambda: run_instances(config, work, extracted, deduplicated, split, vocabulary)
    )
    for line in pair_warnings(next(iter(made.counts.values()), {})):
        LOG.warning("instances: %s", line)
    results = StageResults(extracted, deduplicated, split, vocabulary, made)
    claim.check_unchanged(config)
    return publish(config, claim.config_hash, results, times)
