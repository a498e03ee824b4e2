"""``bertmill evaluate``: a model's MLM and NSP metrics on held-out sequences, by language."""

import argparse
import json
from typing import TYPE_CHECKING

from bertmill.cli.argument_types import Commands, positive

if TYPE_CHECKING:
    from trainer.monitoring.records import PretrainingMetrics

_TIMEOUT_SECONDS = 600.0
"""An evaluation process that does not answer for this long counts as dead."""


def add_parser(commands: Commands) -> None:
    """Adds ``evaluate`` to the console command."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate a model on held-out sequences, by language",
        description="Measures MLM loss, perplexity and accuracy, and NSP accuracy, of an exported model, a "
        "run or a checkpoint on the validation sequences of a corpus.",
    )
    parser.add_argument("model", metavar="MODEL", help="Hugging Face directory, run, or checkpoint")
    parser.add_argument("--corpus", required=True, metavar="MANIFEST", help="the corpus manifest")
    parser.add_argument(
        "--length", type=positive, metavar="N", help="sequence length (default: the longest that fits)"
    )
    parser.add_argument("--rows", type=positive, metavar="N", help="sequences to evaluate (default: all)")
    parser.add_argument(
        "--micro-batch-tokens",
        type=positive,
        default=16384,
        metavar="N",
        help="tokens of a micro-batch (default: 16384)",
    )
    parser.add_argument("--gpu", action="store_true", help="use the first CUDA device, in bf16")
    parser.add_argument(
        "--launcher",
        choices=("local", "torchrun"),
        default="local",
        help="torchrun: several processes share the sequences, and CPUs give bit-identical results; start it "
        "as torchrun --nproc-per-node N -m bertmill evaluate ... --launcher torchrun",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--ema", action="store_true", help="evaluate the moving average of the weights (config field ema)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the metrics on rank 0."""
    # Imported late, so that the other commands do not wait for torch.
    from trainer.distributed.ranks import join_torchrun, leave
    from trainer.evaluation.saved_model import evaluate_model

    distributed = arguments.launcher == "torchrun"
    ranks = join_torchrun(_TIMEOUT_SECONDS, arguments.gpu) if distributed else None
    figures = evaluate_model(
        arguments.model,
        arguments.corpus,
        length=arguments.length,
        rows=arguments.rows,
        micro_batch_tokens=arguments.micro_batch_tokens,
        use_gpu=arguments.gpu,
        ranks=ranks,
        ema=arguments.ema,
    )
    prints = ranks is None or ranks.rank == 0
    leave()
    if prints:
        as_json = {group: one.model_dump(exclude_none=True) for group, one in figures.items()}
        print(json.dumps(as_json, indent=1) if arguments.json else "\n".join(table(figures)))
    return 0


def table(by_language: "dict[str, PretrainingMetrics]") -> list[str]:
    """Lines with a column for each metric and a row for each language."""
    values = {language: figures.model_dump(exclude_none=True) for language, figures in by_language.items()}
    names = list(dict.fromkeys(name for of_language in values.values() for name in of_language))
    rows = [["language", *names]]
    for language, of_language in values.items():
        cells = [of_language.get(name) for name in names]
        rows.append([language, *("" if cell is None else _number(cell) for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
