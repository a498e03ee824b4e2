"""``bertmill evaluate`` and ``finetune``: the arguments and what is printed."""

import argparse
import json
from typing import TYPE_CHECKING

from bertmill.argument_types import positive
from cluster.config_file import load_config

if TYPE_CHECKING:
    from trainer.evaluate import Figures

_TIMEOUT_SECONDS = 600.0
"""After this a process of the evaluation that does not answer counts as dead."""

# torch is imported where a command needs it: the other commands should not wait for it.


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the two commands to the console command."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a model on held-out rows, by language",
        description="Masked LM loss, perplexity and accuracy, and pair accuracy, of a Hugging Face "
        "directory, a run or a checkpoint on the validation rows of a corpus.",
    )
    parser.add_argument("model", metavar="MODEL", help="Hugging Face directory, run, or checkpoint")
    parser.add_argument("--corpus", required=True, metavar="MANIFEST", help="the corpus manifest")
    parser.add_argument(
        "--length", type=positive, metavar="N", help="which set (default: the longest that fits)"
    )
    parser.add_argument("--rows", type=positive, metavar="N", help="measure this many rows (default: all)")
    parser.add_argument(
        "--micro-batch-tokens",
        type=positive,
        default=16384,
        metavar="N",
        help="tokens at a time (default 16384)",
    )
    parser.add_argument("--gpu", action="store_true", help="on the first CUDA device, in bf16")
    parser.add_argument(
        "--launcher",
        choices=("local", "torchrun"),
        default="local",
        help="torchrun: several processes share the rows, with the same figures to the bit on CPUs; "
        "torchrun --nproc-per-node N -m bertmill evaluate ... --launcher torchrun",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(execute=_evaluate)
    parser = commands.add_parser(
        "finetune",
        help="fine-tune a model on a task and measure it",
        description="Trains on labelled files as the config says, once for each seed, and writes "
        "results.json. Sentences and pairs from TSV, tags from CoNLL columns, answers from SQuAD JSON.",
    )
    parser.add_argument("--config", required=True, metavar="URI", help="the fine-tuning's config")
    parser.add_argument("overrides", nargs="*", metavar="-- --FIELD=VALUE", help="replace fields")
    parser.set_defaults(execute=_finetune)


def _evaluate(arguments: argparse.Namespace) -> int:
    from bertmill.models import evaluate_model
    from trainer.ranks import join_torchrun, leave

    several = arguments.launcher == "torchrun"
    ranks = join_torchrun(_TIMEOUT_SECONDS, arguments.gpu) if several else None
    found = evaluate_model(
        arguments.model,
        arguments.corpus,
        length=arguments.length,
        rows=arguments.rows,
        micro_batch_tokens=arguments.micro_batch_tokens,
        use_gpu=arguments.gpu,
        ranks=ranks,
    )
    first = ranks is None or ranks.rank == 0
    leave()
    if first:
        print(json.dumps(found, indent=1) if arguments.json else "\n".join(table(found)))
    return 0


def _finetune(arguments: argparse.Namespace) -> int:
    from trainer.finetune import RESULTS_NAME, finetune
    from trainer.finetune_config import FinetuneConfig

    config = load_config(FinetuneConfig, arguments.config, arguments.overrides)
    report = finetune(config)
    for name, figures in report["summary"].items():
        for metric, spread in figures.items():
            if metric == report["metric"] or name != "validation":
                numbers = "  ".join(f"{label} {value:.4f}" for label, value in spread.items())
                print(f"{name}  {metric}: {numbers}")
    print(f"{len(config.seeds)} seed(s), written to {config.output}/{RESULTS_NAME}")
    return 0


def table(found: "dict[str, Figures]") -> list[str]:
    """Lines with a column for each figure and a row for each language."""
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    rows = [["language", *names]]
    for language, figures in found.items():
        cells = [figures.get(name) for name in names]
        rows.append([language, *("" if cell is None else _number(cell) for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
