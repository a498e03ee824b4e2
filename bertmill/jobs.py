"""The two jobs as function calls."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cluster import storage
from cluster.jobs.config_file import resolve_config
from cluster.jobs.paths import resolve_output_path
from cluster.jobs.shutdown import SIGNALS, Interrupted
from pipeline.build import build as run_build
from pipeline.config import BuildConfig
from schemas.errors import ConfigError
from schemas.manifest import MANIFEST_NAME
from trainer.config import TrainConfig
from trainer.pretrain import launch, resolve_paths
from trainer.run.loop import Outcome


@dataclass(frozen=True)
class BuildResult:
    """A finished corpus."""

    output: str
    """Its folder: an absolute path or a URI."""
    manifest: str
    """Its manifest, which a training run and `load_corpus` take."""
    summary: str
    """The closing table of the build: pages, documents, tokens and sequences by language."""


def build(
    config: str | os.PathLike[str] | Mapping[str, Any] | BuildConfig, *, cpus: int | None = None
) -> BuildResult:
    """Builds a corpus, or resumes a build of the same config, like ``python pipeline/build_corpus.py``.

    Runs in the Ray cluster that this process has joined, in the one that RAY_ADDRESS names, or in a new one
    on this machine with ``cpus`` CPUs (default: all). ``config`` is a YAML file (path or URI), a mapping of
    its fields, or a `BuildConfig`.

    Raises BertmillError, whose text is one line: ConfigError for a wrong config, InputError for a damaged
    source, CorpusError for an output folder of another build, StorageError.

    >>> result = build("configs/demo.yaml")  # doctest: +SKIP
    >>> dataset = load_corpus(result.manifest, batch_size=32)  # doctest: +SKIP
    """
    resolved = resolve_config(BuildConfig, config)
    output = resolve_output_path(resolved.output)
    summary = run_build(resolved, num_cpus=cpus)
    return BuildResult(output, storage.join(output, MANIFEST_NAME), summary)


def pretrain(
    config: str | os.PathLike[str] | Mapping[str, Any] | TrainConfig,
    *,
    launcher: Literal["ray", "local"] = "ray",
) -> Outcome:
    """Trains a model, or resumes the run of that name, like ``python trainer/pretrain.py``.

    ``config`` is a YAML file (path or URI), a mapping of its fields, or a `TrainConfig`. ``launcher`` is
    ``ray`` for workers.num_workers processes under Ray Train, or ``local`` for this process alone. Prints
    the progress. On SIGTERM or Ctrl-C it saves a checkpoint and returns with status ``stopped``. Before the
    first step it raises KeyboardInterrupt.

    Raises BertmillError, whose text is one line: ConfigError for a wrong config, CorpusError for a damaged
    corpus, CheckpointError for checkpoints that do not fit, StorageError.

    >>> outcome = pretrain("configs/demo-train.yaml")  # doctest: +SKIP
    >>> model = load_model(outcome.run_uri).model  # doctest: +SKIP
    """
    if launcher not in ("ray", "local"):
        raise ConfigError(f"launcher: {launcher!r} must be 'ray' or 'local'")
    with _process_settings_restored(), _interrupts():
        outcome, _ = launch(launcher, resolve_paths(resolve_config(TrainConfig, config)))
    return outcome


@contextmanager
def _interrupts() -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        raise KeyboardInterrupt from error


@contextmanager
def _process_settings_restored() -> Iterator[None]:
    """Restores what a job changes in its process: the number of torch's threads, and signal handlers."""
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
