"""Pretraining as a job: ``python trainer/pretrain.py --config configs/demo-train.yaml``.

The launchers differ in how the ranks come to life; the loop is the same (trainer/loop.py).
ray: Ray Train starts ``workers.num_workers`` processes and starts them again when one dies.
torchrun: started by ``torchrun --nproc-per-node N trainer/pretrain.py --launcher torchrun ...``.
local: this process alone.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from cluster.config_file import load_config
from cluster.job_arguments import job_parser
from cluster.job_paths import lasting, lasting_input
from schemas.errors import BertmillError
from trainer import stopping
from trainer.config import TrainConfig
from trainer.hooks import Hooks
from trainer.loop import train
from trainer.progress import Progress, show_outcome, show_plan
from trainer.ranks import alone, join_torchrun, pick_device

_EXIT_STOPPED = 128 + signal.SIGTERM


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The known arguments, and the ``--field=value`` overrides."""
    parser = job_parser(
        "pretrain.py",
        "Trains a BERT from the shards of a corpus.",
        "--phases.0.steps=100",
        TrainConfig,
    )
    parser.add_argument("--launcher", choices=("ray", "local", "torchrun"), default="ray")
    return parser.parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: finished, 143: stopped by SIGTERM after a checkpoint, 2: a mistake."""
    arguments, overrides = parse_arguments(argv)
    try:
        config = _absolute(load_config(TrainConfig, arguments.config, overrides))
        if arguments.dry_run:
            show_plan(config, _say)
            return 0
        outcome = _launch(arguments.launcher, config)
    except BertmillError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return 2
    if outcome["rank"] == 0:
        show_outcome(outcome, _say)
    return _EXIT_STOPPED if outcome["status"] == "stopped" else 0


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        # Its disk is full, or its reader has left: no reason to end a training, whose log is a file.
        print(f"pretrain: nothing more is printed: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _absolute(config: TrainConfig) -> TrainConfig:
    """Relative paths made absolute: workers may run in another folder than this process."""
    run = config.run.model_copy(update={"storage": lasting(config.run.storage)})
    cache = config.data.disk_cache and lasting(config.data.disk_cache)
    data = config.data.model_copy(update={"manifest": lasting(config.data.manifest), "disk_cache": cache})
    lesson = config.distillation
    if lesson is not None:
        lesson = lesson.model_copy(update={"teacher": lasting_input(lesson.teacher)})
    return config.model_copy(
        update={
            "run": run,
            "data": data,
            "start_from": config.start_from and lasting_input(config.start_from),
            "distillation": lesson,
            "compile_cache": config.compile_cache and lasting(config.compile_cache),
        }
    )


def _launch(launcher: str, config: TrainConfig) -> dict[str, Any]:
    """Trains; the outcome, with the rank that this process had."""
    progress = Progress(_say)
    if launcher == "ray":
        # Not imported above: the other launchers run on hosts without Ray.
        ray_launcher = importlib.import_module("trainer.ray_launcher")
        return {**ray_launcher.launch(config, progress), "rank": 0}
    stopping.install()
    torch.set_num_threads(max(1, int(config.workers.cpus_per_worker)))
    use_gpu = config.workers.use_gpu
    if launcher == "torchrun":
        ranks = join_torchrun(config.workers.collective_timeout_seconds, use_gpu)
    else:
        ranks = alone(pick_device(use_gpu))
    outcome = train(config, ranks, Hooks(stop_wanted=stopping.wanted, echo=progress))
    if launcher == "torchrun":
        torch.distributed.destroy_process_group()
    return {**asdict(outcome), "rank": ranks.rank}


if __name__ == "__main__":
    sys.exit(main())
