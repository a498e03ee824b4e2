"""The stages of a corpus build, in order."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import ray
import yaml

from cluster import storage
from cluster.jobs.lease import Claimant, RunLease, acquire_lease
from cluster.jobs.paths import resolve_output_path
from cluster.ray_cluster.connection import connect, quiet_ray_data, use_all_cpus
from cluster.ray_cluster.metrics import BuildMetrics
from cluster.ray_cluster.resources import await_bundle
from pipeline.config import BuildConfig
from pipeline.dedup.evaluation_files import evaluation_files, evaluation_texts
from pipeline.documents.filters import Filters
from pipeline.documents.reuse.previous_pages import PreviousPages
from pipeline.engine.build_identity import BuildIdentity
from pipeline.engine.progress import Progress, clock, recorded, watched_by
from pipeline.engine.ray_data import retry_on_node_loss
from pipeline.instances.counts import pair_warnings
from pipeline.instances.word_lists import read_word_list
from pipeline.plugins import plugin_versions
from pipeline.report.tables import closing_table, plan_table
from pipeline.sources.plan import plan_units
from pipeline.sources.units import Unit
from pipeline.stages.dedup import run_dedup
from pipeline.stages.documents import run_documents
from pipeline.stages.extract import run_extract
from pipeline.stages.hashes import run_hashes
from pipeline.stages.instances import run_instances
from pipeline.stages.previous import open_previous, open_signatures, publish_pages, publish_signatures
from pipeline.stages.publish import StageResults, publish
from pipeline.stages.split import run_split
from pipeline.stages.templates import PageCopies, run_templates
from pipeline.stages.vocabulary import run_vocabulary
from pipeline.wikitext.python_rules import load_python_rules
from pipeline.wordpiece.hub_tokenizer import is_hub_tokenizer, load_hub_tokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.manifest import MANIFEST_NAME, Manifest
from schemas.redaction import public_fields, public_uri

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

CLAIMANT = Claimant(
    doing="building this corpus", advice="wait until it has ended, or stop it and rerun the same command"
)
"""How a build claims its output."""


def dry_run(config: BuildConfig) -> str:
    """The resolved config and the planned units, as text. Reads sources and writes nothing.

    Raises BertmillError on a user's mistake or if the previous build cannot be used.
    """
    _check_plugins(config)
    open_previous(config)
    fields = public_fields(config.model_dump(mode="json"))
    resolved = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    return f"{resolved}\n{plan_table(plan_units(config))}"


def build(config: BuildConfig, num_cpus: int | None = None) -> str:
    """Runs all stages and returns the closing table. Raises BertmillError on a user's mistake."""
    started = time.monotonic()
    config = config.model_copy(update={"output": resolve_output_path(config.output)})
    identity, units, previous = preflight(config)
    work = work_folder(config.output)
    storage.check_writable(work)
    lease = acquire_lease(work, CLAIMANT)
    try:
        storage.end_stale_uploads(config.output)
        # A driver that joins a cluster here leaves it as soon as the build has ended.
        leaves_soon = not ray.is_initialized() and not connect(num_cpus=num_cpus)
        await_bundle({"CPU": 1.0}, "build")
        quiet_ray_data()
        use_all_cpus()
        # The output's last folder names the build on Ray's metrics endpoint.
        name = config.output.rstrip("/").rpartition("/")[2]
        with (
            BuildMetrics(name, wait_for_report=leaves_soon) as metrics,
            watched_by(metrics),
            recorded() as times,
        ):
            manifest = _run_stages(config, identity, lease, units, previous, times)
    finally:
        lease.release()
    manifest_uri = public_uri(storage.join(config.output, MANIFEST_NAME))
    logger.info("build: manifest written to %s", manifest_uri)
    took = clock(time.monotonic() - started)
    return f"{closing_table(manifest)}\n\nbuilt in {took}: {manifest_uri}"


def preflight(config: BuildConfig) -> tuple[BuildIdentity, list[Unit], PreviousPages | None]:
    """Runs all checks that need no Ray. Returns the identity, the units and the previous pages of a build.

    Writes nothing. Raises BertmillError on a user's mistake.
    """
    _check_plugins(config)
    identity = BuildIdentity.of(config)
    _check_side_files(config)
    identity.check_output(config.output)
    return identity, plan_units(config), open_previous(config)


def work_folder(output: str) -> str:
    """The folder with the state for resuming a build and the lease of the process that builds."""
    return storage.join(output, "work")


def _check_plugins(config: BuildConfig) -> None:
    """Creates the filters and rules, which only late stages need, so that mistakes show early.

    Planning creates the readers. Raises BertmillError.
    """
    plugin_versions(config)
    Filters(config.extraction.filters)
    if config.extraction.template_functions is not None:
        load_python_rules(config.extraction.template_functions)


def _check_side_files(config: BuildConfig) -> None:
    """Reads the files that only late stages need, so that mistakes show early. Raises BertmillError."""
    if config.vocabulary.path is not None and is_hub_tokenizer(config.vocabulary.path):
        load_hub_tokenizer(config.vocabulary.path)
    elif config.vocabulary.path is not None:
        load_vocabulary(config.vocabulary.path, config.vocabulary.cased)
    read_word_list(config)
    for uri in evaluation_files(config.dedup.evaluation):
        for _ in evaluation_texts(uri):
            pass


def _run_stages(
    config: BuildConfig,
    identity: BuildIdentity,
    lease: RunLease,
    units: list[Unit],
    previous: PreviousPages | None,
    times: list[Progress],
) -> Manifest:
    """Runs all stages in order. Each one resumes from what earlier runs committed."""
    work = work_folder(config.output)

    def run(name: str, stage: Callable[[], Result]) -> Result:
        lease.check()
        return retry_on_node_loss(name, stage)

    run("hashes", lambda: run_hashes(work, units))
    copies = PageCopies.create(config, work, units)
    made = None if previous is None else copies
    templates = run("templates", lambda: run_templates(config, work, units, made))
    extracted = run("extract", lambda: run_extract(config, work, units, templates, previous, copies))
    publish_pages(config, extracted.folder)
    signatures = open_signatures(config, previous)
    deduplicated = run("dedup", lambda: run_dedup(config, work, extracted, signatures))
    if deduplicated.signatures is not None:
        publish_signatures(config, deduplicated.signatures)
    split = run("split", lambda: run_split(config, work, extracted, deduplicated))
    # From here on, all builds use the same file names: tokenizer, shards, manifest.
    identity.claim_output(config.output)
    vocabulary = run("vocabulary", lambda: run_vocabulary(config, work, extracted, deduplicated))
    instances = run(
        "instances", lambda: run_instances(config, work, extracted, deduplicated, split, vocabulary)
    )
    documents = run("documents", lambda: run_documents(config, work, extracted, deduplicated))
    for line in pair_warnings(next(iter(instances.counts.values()), {})):
        logger.warning("instances: %s", line)
    identity.check_unchanged(config)
    lease.check()
    results = StageResults(extracted, deduplicated, split, vocabulary, instances, documents)
    return publish(config, identity, results, times)
