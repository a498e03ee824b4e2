"""Finds what would stop a job, without starting it: ``bertmill doctor --config FILE``."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bertmill.findings import Finding, try_storage
from cluster import scratch, storage
from cluster.jobs.config_file import load_config, parse_yaml
from cluster.jobs.lease import Claimant, await_free
from cluster.jobs.paths import resolve_output_path
from pipeline.build import CLAIMANT, preflight, work_folder
from pipeline.config import BuildConfig
from schemas.errors import BertmillError
from trainer.config import TrainConfig
from trainer.model.pretraining import BertPretraining, parameter_count
from trainer.pretrain import resolve_paths
from trainer.startup.checkpoint_size import check_room
from trainer.startup.handshake import check_vocabulary
from trainer.startup.setup import preflight as plan_run

_STATE_BYTES = 3 * 4
"""Bytes of a parameter in a checkpoint: weight and two moments in fp32."""


def examine_config(uri: str) -> Iterator[Finding]:
    """Checks what a job of the config at ``uri`` needs at its start. Removes its test files."""
    try:
        config = _load(uri)
    except (BertmillError, FileNotFoundError) as error:
        yield Finding("fail", str(error) if isinstance(error, BertmillError) else f"{uri}: no such file")
        return
    if isinstance(config, BuildConfig):
        yield Finding("ok", f"{uri}: a valid build config")
        yield from _build_checks(config)
    else:
        yield Finding("ok", f"{uri}: a valid training config")
        yield from _training_checks(config)


def _load(uri: str) -> BuildConfig | TrainConfig:
    fields = parse_yaml(storage.read_bytes(uri), uri)
    if {"run", "phases", "data"} & fields.keys():
        return resolve_paths(load_config(TrainConfig, uri))
    config = load_config(BuildConfig, uri)
    return config.model_copy(update={"output": resolve_output_path(config.output)})


def _build_checks(config: BuildConfig) -> Iterator[Finding]:
    def sources() -> str:
        return f"sources: {len(preflight(config)[1]):,} units"

    work = work_folder(config.output)
    yield _try(sources)
    yield try_storage(work)
    yield _try(lambda: _free(work, CLAIMANT))
    yield _try(_scratch)


def _training_checks(config: TrainConfig) -> Iterator[Finding]:
    run = config.run

    def plan() -> str:
        planned = plan_run(config)
        check_vocabulary(planned.corpus)
        return f"{planned.corpus.uri}: {planned.steps.total_steps:,} steps fit this corpus"

    def room() -> str:
        with torch.device("meta"):
            size = _STATE_BYTES * parameter_count(BertPretraining(plan_run(config).model))
        check_room(run.uri, size, config.checkpoints.format, config.workers.least)
        return f"room for a checkpoint of {size / 2**20:,.0f} MiB"

    planned = _try(plan)
    yield planned
    if planned.level == "ok":
        yield _try(room)
    yield try_storage(run.uri)
    claimant = Claimant(take_over=run.take_over, seconds=run.lease_seconds)
    yield _try(lambda: _free(run.uri, claimant))
    yield _try(_scratch)
    for folder in (config.data.disk_cache, config.compile_cache):
        if folder is not None:
            yield try_storage(folder)
    teacher = config.distillation.teacher if config.distillation else None
    for model in (config.start_from, teacher):
        if model is not None:
            yield _try(partial(_has_files, model))


def _try(check: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", check())
    except FileNotFoundError as error:
        return Finding("fail", f"{error}: no such file")
    except (BertmillError, OSError) as error:
        return Finding("fail", str(error))


def _free(uri: str, claimant: Claimant) -> str:
    await_free(uri, claimant)
    return f"{uri}: no other process owns it"


def _scratch() -> str:
    with scratch.folder("doctor") as folder:
        return f"{folder.parent}: temporary files can be written"


def _has_files(uri: str) -> str:
    if not storage.list_files(uri):
        raise FileNotFoundError(uri)
    return f"{uri}: found"
