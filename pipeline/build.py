"""The stages of a corpus build in order, and the guard that keeps two configs out of one output."""

import hashlib
import json
import logging
import time
from typing import Any

import yaml

from cluster import storage
from cluster.job_paths import lasting
from cluster.metrics import BuildMetrics
from cluster.ray_connection import connect, quiet_ray_data, use_all_cpus
from pipeline.commit import stable_hash
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
from schemas.documents import DOCUMENTS_VERSION
from schemas.errors import ConfigError, CorpusError, StorageError
from schemas.manifest import MANIFEST_NAME, MANIFEST_VERSION
from schemas.shards import SHARDS_VERSION
from schemas.versions import CODE_VERSION

LOG = logging.getLogger("bertmill.build")
_CLAIM = "work/build.json"
_ABANDONED_SECONDS = 3600.0
"""Age from which an unfinished file is nobody's; another build on this output may be writing younger ones."""
_SIDE_FILES = ("extraction.template_rules", "vocabulary.path", "instances.masking.words")


def dry_run(config: BuildConfig) -> str:
    """The resolved config and the planned units, as text. Reads sources, writes nothing."""
    resolved = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{resolved}\n{plan_table(plan_units(config))}"


def build(config: BuildConfig, num_cpus: int | None = None) -> str:
    """Runs all stages and returns the closing table. Raises BertmillError on a user's mistake."""
    started = time.monotonic()
    config = config.model_copy(update={"output": lasting(config.output)})
    _check_side_files(config)
    check_output(config)
    units = plan_units(config)
    _end_abandoned_uploads(config.output)
    connect(num_cpus=num_cpus)
    quiet_ray_data()
    use_all_cpus()
    # The output's last folder names the build on Ray's metrics endpoint.
    name = config.output.rstrip("/").rpartition("/")[2]
    with BuildMetrics(name) as metrics, watched_by(metrics), recorded() as times:
        manifest = _run_stages(config, units, times)
    LOG.info("build: manifest written to %s", storage.join(config.output, MANIFEST_NAME))
    took = clock(time.monotonic() - started)
    return f"{closing_table(manifest)}\n\nbuilt in {took}: {storage.join(config.output, MANIFEST_NAME)}"


def _check_side_files(config: BuildConfig) -> None:
    """What only a late stage reads is wrong at once, not after hours. Raises BertmillError."""
    config_hash(config)
    if config.vocabulary.path is not None:
        load_vocabulary(config.vocabulary.path, config.vocabulary.cased)
    read_word_list(config)
    for uri in evaluation_files(config.dedup.evaluation):
        for _ in evaluation_texts(uri):
            pass


def _end_abandoned_uploads(output: str) -> None:
    try:
        ended = storage.abort_uploads(output, time.time() - _ABANDONED_SECONDS)
    except StorageError as error:  # no reason not to build: a key may write and not list these
        LOG.warning("build: files that killed processes had begun to write stay for now: %s", error)
        return
    if ended:
        LOG.info("build: %s: removed %d files that killed processes had begun to write", output, ended)


def _run_stages(config: BuildConfig, units: list[Unit], times: list[Progress]) -> dict[str, Any]:
    """All stages in order, each going on where it was; the manifest."""
    work = storage.join(config.output, "work")
    extracted = persistently("extract", lambda: run_extract(config, work, units))
    deduplicated = persistently("dedup", lambda: run_dedup(config, work, extracted))
    split = persistently("split", lambda: run_split(config, work, extracted, deduplicated))
    # From here on names are shared: tokenizer, shards, manifest.
    claim_output(config)
    vocabulary = persistently("vocabulary", lambda: run_vocabulary(config, work, extracted, deduplicated))
    made = persistently(
        "instances", lambda: run_instances(config, work, extracted, deduplicated, split, vocabulary)
    )
    for line in pair_warnings(next(iter(made.counts.values()), {})):
        LOG.warning("instances: %s", line)
    results = StageResults(extracted, deduplicated, split, vocabulary, made)
    return publish(config, config_hash(config), results, times)


def config_hash(config: BuildConfig) -> str:
    """Hash of all that the corpus depends on."""
    return stable_hash(_claimed_fields(config), DOCUMENTS_VERSION, SHARDS_VERSION, MANIFEST_VERSION)


def check_output(config: BuildConfig) -> None:
    """Raises ConfigError when the output belongs to a build of another config or code version."""
    uri = storage.join(config.output, _CLAIM)
    try:
        found = json.loads(storage.read_bytes(uri))
        theirs, their_hash, their_code = found["config"], found["config_hash"], found["code_version"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{uri}: not a build's claim: {error}") from error
    if their_hash != config_hash(config):
        changed = ", ".join(_differences(theirs, _claimed_fields(config))) or "the versions of the formats"
        raise ConfigError(
            f"{config.output}: holds a build of another config (differs in {changed}); "
            "choose another output or remove this one"
        )
    if their_code != CODE_VERSION:
        raise ConfigError(
            f"{config.output}: holds a build of bertmill {their_code}, this is {CODE_VERSION}; "
            "choose another output, remove this one, or go on with the version that began it"
        )


def claim_output(config: BuildConfig) -> None:
    """Takes the output's fixed names for this config. Raises ConfigError when another config has them."""
    claim = {
        "config_hash": config_hash(config),
        "code_version": CODE_VERSION,
        "config": _claimed_fields(config),
    }
    raw = (json.dumps(claim, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
    if not storage.put_if_absent(storage.join(config.output, _CLAIM), raw):
        check_output(config)


def _claimed_fields(config: BuildConfig) -> dict[str, Any]:
    """All that the corpus depends on; the output's own place is not part of it.

    Files that the config names beside the sources stand in it with their SHA-256: they may change under the
    same name. Raises ConfigError when one is missing.
    """
    fields: dict[str, Any] = config.model_dump(mode="json", exclude={"output"})
    for name in _SIDE_FILES:
        *sections, last = name.split(".")
        section = fields
        for part in sections:
            section = section[part]
        if section[last] is not None:
            section[last] = {"path": section[last], "sha256": _sha256(name, section[last])}
    if config.dedup.evaluation:
        files = evaluation_files(config.dedup.evaluation)
        fields["dedup"]["evaluation"] = {uri: _sha256("dedup.evaluation", uri) for uri in files}
    return fields


def _sha256(field: str, uri: str) -> str:
    try:
        digest = hashlib.sha256()
        with storage.open_stream(uri) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except FileNotFoundError as error:
        raise ConfigError(f"{field}: {uri}: no such file") from error


def _differences(left: Any, right: Any, name: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted(left.keys() | right.keys())
        parts = [_differences(left.get(key), right.get(key), f"{name}.{key}".lstrip(".")) for key in keys]
        return [item for part in parts for item in part]
    return [] if left == right else [name]
