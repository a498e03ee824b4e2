"""Pretraining as a job: ``python trainer/pretrain.py --config configs/demo-train.yaml``.

The launchers differ in how they start the ranks. The loop is the same (trainer/run/loop.py).
ray: Ray Train starts ``workers.num_workers`` processes, and restarts them when one dies.
torchrun: ``torchrun --nproc-per-node N trainer/pretrain.py --launcher torchrun ...`` starts them.
local: a single process.
"""

import argparse
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # As a script: import the packages of this checkout, and no module of this folder by its bare name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from cluster.jobs import shutdown
from cluster.jobs.arguments import job_parser
from cluster.jobs.config_file import load_config
from cluster.jobs.job_process import run_job
from cluster.jobs.paths import resolve_input_path, resolve_output_path
from schemas.errors import BertmillError
from trainer.config import TrainConfig
from trainer.distributed.ranks import join_torchrun, pick_device, single_rank
from trainer.hooks import Hooks
from trainer.run.console import ConsoleLog, show_outcome, show_plan
from trainer.run.loop import Outcome, train


def argument_parser() -> argparse.ArgumentParser:
    """The parser of this job. It leaves ``--field=value`` overrides to the caller."""
    parser = job_parser(
        "pretrain.py",
        "Trains a BERT from the shards of a corpus.",
        "--phases.0.steps=100",
        TrainConfig,
    )
    parser.add_argument(
        "--launcher",
        choices=("ray", "local", "torchrun"),
        default="ray",
        help="how the ranks start: under Ray Train (default), as this process alone, or by torchrun",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="replace a process that is training this run now (run.take_over); it stops within seconds and"
        " saves its state in RUN/displaced",
    )
    return parser


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The known arguments, and the ``--field=value`` overrides."""
    return argument_parser().parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: finished. 143: stopped by SIGTERM or Ctrl-C. 2: an error."""
    arguments, overrides = parse_arguments(argv)
    try:
        if arguments.take_over:
            overrides = [*overrides, "--run.take_over=true"]
        config = resolve_paths(load_config(TrainConfig, arguments.config, overrides))
        if arguments.dry_run:
            show_plan(config, _print_line)
            return 0
        outcome, rank = launch(arguments.launcher, config)
    except BertmillError as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return 2
    except shutdown.Interrupted as stop:
        where = str(stop) or "stopped before the first step"
        print(f"pretrain: {where}; rerun the same command to resume", file=sys.stderr)
        return shutdown.EXIT_STOPPED
    except KeyboardInterrupt:
        print("pretrain: stopped; rerun the same command to resume after the last save", file=sys.stderr)
        return shutdown.EXIT_STOPPED
    if rank == 0:
        show_outcome(outcome, _print_line)
    return shutdown.EXIT_STOPPED if outcome.status == "stopped" else 0


def _print_line(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        # A full disk or a closed pipe must not end a training, which also writes its log to files.
        print(f"pretrain: cannot print any more output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def resolve_paths(config: TrainConfig) -> TrainConfig:
    """Makes relative paths absolute, because workers may run in another folder than this process."""
    run = config.run.model_copy(update={"storage": resolve_output_path(config.run.storage)})
    cache = config.data.disk_cache and resolve_output_path(config.data.disk_cache)
    data = config.data.model_copy(
        update={"manifest": resolve_output_path(config.data.manifest), "disk_cache": cache}
    )
    distillation = config.distillation
    if distillation is not None:
        teacher = resolve_input_path(distillation.teacher)
        distillation = distillation.model_copy(update={"teacher": teacher})
    return config.model_copy(
        update={
            "run": run,
            "data": data,
            "start_from": config.start_from and resolve_input_path(config.start_from),
            "distillation": distillation,
            "compile_cache": config.compile_cache and resolve_output_path(config.compile_cache),
        }
    )


def without_take_over_again(config: TrainConfig) -> TrainConfig:
    """``config`` for a start by torchrun: its restarts must not take the run back from a newer attempt."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return config
    return config.model_copy(update={"run": config.run.model_copy(update={"take_over": False})})


def launch(launcher: str, config: TrainConfig) -> tuple[Outcome, int]:
    """Trains and returns the outcome and the rank of this process."""
    console = ConsoleLog(_print_line)
    if launcher == "ray":
        # Imported here because the other launchers run on hosts without Ray.
        ray_launcher = importlib.import_module("trainer.launcher.ray_train")
        return ray_launcher.launch(config, console), 0
    if threading.current_thread() is threading.main_thread():
        # Signals reach the main thread only.
        shutdown.install()
    torch.set_num_threads(max(1, int(config.workers.cpus_per_worker)))
    use_gpu = config.workers.use_gpu
    if launcher == "torchrun":
        config = without_take_over_again(config)
        ranks = join_torchrun(config.workers.collective_timeout_seconds, use_gpu)
    else:
        ranks = single_rank(pick_device(use_gpu))
    hooks = Hooks(shutdown.requested, on_record=console, interruptible=shutdown.interruptible)
    outcome = train(config, ranks, hooks)
    if launcher == "torchrun":
        torch.distributed.destroy_process_group()
    return outcome, ranks.rank


if __name__ == "__main__":
    sys.exit(run_job(main))
