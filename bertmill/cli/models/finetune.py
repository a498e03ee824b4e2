"""``bertmill finetune``: fine-tunes a model on a task and evaluates it."""

import argparse
from typing import TYPE_CHECKING

from bertmill.cli.argument_types import Commands
from cluster.jobs import shutdown
from cluster.jobs.config_file import load_config

if TYPE_CHECKING:
    from trainer.finetuning.results import FinetuneReport

_TIMEOUT_SECONDS = 1800.0
"""A process that does not answer for this long counts as dead."""


def add_parser(commands: Commands) -> None:
    """Adds ``finetune`` to the console command."""
    parser = commands.add_parser(
        "finetune",
        help="fine-tune a model on a task and evaluate it",
        description="Trains on labeled files, once for each seed of the config, and writes results.json "
        "after each. Reads sentences and pairs from TSV, CSV, JSON, JSON Lines, Parquet or a dataset of the "
        "Hub, tags from CoNLL columns, answers from SQuAD JSON. The same command resumes a run that was "
        "killed or stopped.",
    )
    parser.add_argument("--config", required=True, metavar="URI", help="the fine-tuning config")
    parser.add_argument(
        "--launcher",
        choices=("local", "torchrun"),
        default="local",
        help="torchrun: several processes share each batch; start it as "
        "torchrun --nproc-per-node N -m bertmill finetune ... --launcher torchrun",
    )
    parser.add_argument("overrides", nargs="*", metavar="-- --FIELD=VALUE", help="override config fields")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints progress, then the metrics over all seeds. Returns 143 if a signal stopped it after a save."""
    # Imported late, so that the other commands do not wait for torch.
    from trainer.distributed.ranks import join_torchrun, leave
    from trainer.finetuning.config import FinetuneConfig
    from trainer.finetuning.progress import line_of
    from trainer.finetuning.run import finetune

    config = load_config(FinetuneConfig, arguments.config, arguments.overrides)
    distributed = arguments.launcher == "torchrun"
    with shutdown.handled():
        ranks = join_torchrun(_TIMEOUT_SECONDS, config.use_gpu) if distributed else None
        prints = ranks is None or ranks.rank == 0
        report = finetune(
            config,
            ranks=ranks,
            stop_requested=shutdown.requested,
            on_event=lambda event: print(line_of(event), flush=True) if prints else None,
        )
        leave()
    if prints:
        _show(report, config.output)
    return 0 if report.complete else shutdown.EXIT_STOPPED


def _show(report: "FinetuneReport", output: str) -> None:
    from trainer.finetuning.results import RESULTS_NAME

    for name, metrics in report.summary.items():
        for metric, spread in metrics.items():
            if metric == report.metric or name != "validation":
                print(
                    f"{name}  {metric}: median {spread.median:.4f}  mean {spread.mean:.4f}"
                    f"  deviation {spread.deviation:.4f}  best {spread.best:.4f}"
                )
    done, seeds = len(report.seeds), len(set(report.config.seeds))
    if not report.complete:
        print(f"stopped with {done} of {seeds} seed(s) finished; rerun the same command to resume")
    print(f"{done} seed(s), written to {output}/{RESULTS_NAME}")
