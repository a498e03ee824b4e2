"""``bertmill scorecard``: fine-tunes a model on a suite of tasks and compares it with published results."""

import argparse
import sys

from bertmill.cli.argument_types import Commands, positive
from cluster.jobs import shutdown


def add_parser(commands: Commands) -> None:
    """Adds ``scorecard`` to the console command."""
    parser = commands.add_parser(
        "scorecard",
        help="fine-tune a model on GLUE or multilingual tasks and compare it with published results",
        description="Fine-tunes over tasks, learning rates and seeds, one process for each GPU, and writes "
        "scorecard.json, .md and .html with mean, deviation and device-hours. Lists the tasks whose files "
        "are missing. A training that fails does not end the others. The same command resumes a scorecard "
        "that was stopped, and retries failed jobs.",
    )
    parser.add_argument("model", metavar="MODEL", help="Hugging Face directory, run, or checkpoint")
    parser.add_argument(
        "--suite",
        required=True,
        choices=("glue", "multilingual"),
        help="glue: CoLA, SST-2, MRPC, STS-B, RTE, QNLI; multilingual: zero-shot from English on PAN-X, UD "
        "POS, TyDiQA-GoldP, XQuAD and SIB-200, and Tatoeba without training",
    )
    parser.add_argument(
        "--data", required=True, metavar="FOLDER", help="folder with the datasets of the tasks"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="output folder for jobs and pages")
    parser.add_argument("--tokenizer", metavar="URI", help="folder of tokenizer.json (default: MODEL)")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="only these tasks, such as cola rte")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="(default: 1 2 3)"
    )
    parser.add_argument(
        "--learning-rates",
        nargs="+",
        type=float,
        default=[3e-5, 5e-5],
        metavar="LR",
        help="learning rates to try (default: 3e-5 5e-5)",
    )
    parser.add_argument("--epochs", type=positive, metavar="N", help="(default: 3 to 10 by task)")
    parser.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="examples in a step (default: 32)"
    )
    parser.add_argument(
        "--max-length",
        type=positive,
        default=128,
        metavar="N",
        help="longest input in tokens, three times as long for contexts of questions (default: 128)",
    )
    parser.add_argument(
        "--max-examples", type=positive, metavar="N", help="use only the first N examples of each set"
    )
    parser.add_argument(
        "--nli-model", metavar="URI", help="model fine-tuned on NLI from which RTE, MRPC and STS-B start"
    )
    parser.add_argument("--gpu", action="store_true", help="use all CUDA devices, in bf16")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes (default: one for each GPU, or one)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints progress and where the pages are. Returns 1 if a job failed, 143 if a signal stopped it."""
    # Imported late, so that the other commands do not wait for torch.
    from bertmill.scorecard.layouts import TASKS
    from bertmill.scorecard.records import Settings
    from bertmill.scorecard.run import make_scorecard
    from schemas.errors import ConfigError

    unknown = sorted(set(arguments.tasks or ()) - set(TASKS[arguments.suite]))
    if unknown:
        names = ", ".join(TASKS[arguments.suite])
        raise ConfigError(f"--tasks: {unknown[0]!r} is not a task of {arguments.suite}: {names}")
    settings = Settings(
        model=arguments.model,
        tokenizer=arguments.tokenizer,
        nli_model=arguments.nli_model,
        seeds=tuple(dict.fromkeys(arguments.seeds)),
        learning_rates=tuple(dict.fromkeys(arguments.learning_rates)),
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        max_examples=arguments.max_examples,
        use_gpu=arguments.gpu,
    )
    with shutdown.handled():
        card = make_scorecard(
            settings,
            arguments.suite,
            arguments.data,
            arguments.out,
            tasks=arguments.tasks or (),
            workers=arguments.workers,
            stop_requested=shutdown.requested,
            print_line=lambda line: print(line, flush=True),
        )
    for task in card.tasks.values():
        mean = task.mean
        if mean is not None:
            over = f" ± {100 * mean.deviation:.1f}" if mean.count > 1 else ""
            print(f"{task.title}  {task.metric} {100 * mean.mean:.1f}{over}")
    print(f"written to {arguments.out}/scorecard.html")
    for name, reason in card.failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    if card.failed:
        print("rerun the same command to retry the failed jobs", file=sys.stderr)
    elif not card.complete:
        print("stopped; rerun the same command to resume")
    if shutdown.requested():
        return shutdown.EXIT_STOPPED
    return 0 if card.complete else 1
