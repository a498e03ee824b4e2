"""``bertmill export``, ``fill`` and ``checkpoints``: the arguments and what is printed."""

import argparse

from bertmill.argument_types import natural, positive

# torch is imported where a command needs it: the other commands should not wait for it.


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the three commands to the console command."""
    parser = commands.add_parser(
        "export",
        help="write a Hugging Face directory",
        description="Writes the newest verified checkpoint of a run as a directory that transformers loads.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder or URI")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where the model goes: a folder or URI")
    parser.add_argument(
        "--evaluate",
        type=natural,
        default=0,
        metavar="ROWS",
        help="measure this many held-out rows for the model card (default: none)",
    )
    parser.set_defaults(execute=_export)
    parser = commands.add_parser("fill", help="fill the [MASK]s of a text with an exported model")
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face directory")
    parser.add_argument("text", nargs="+", metavar="TEXT", help="text with [MASK] in it")
    parser.add_argument(
        "--top", type=positive, default=3, metavar="N", help="answers for each mask (default 3)"
    )
    parser.set_defaults(execute=_fill)
    parser = commands.add_parser("checkpoints", help="list a run's checkpoints and whether each can be used")
    parser.add_argument("run", metavar="RUN", help="the run's folder or URI")
    parser.set_defaults(execute=_checkpoints)


def _export(arguments: argparse.Namespace) -> int:
    from bertmill.models import export_run

    step = export_run(arguments.run, arguments.to, arguments.evaluate)
    print(f"step {step} exported to {arguments.to}")
    return 0


def _fill(arguments: argparse.Namespace) -> int:
    from bertmill.models import fill_masks

    results = fill_masks(arguments.model, arguments.text, arguments.top)
    for text, masks in zip(arguments.text, results, strict=True):
        print(text)
        for number, pieces in enumerate(masks, start=1):
            answers = "  ".join(f"{piece} {chance:.3f}" for piece, chance in pieces)
            print(f"  mask {number}: {answers}")
    return 0


def _checkpoints(arguments: argparse.Namespace) -> int:
    from trainer.checkpoint_listing import format_line, list_checkpoints

    for found in list_checkpoints(arguments.run):
        print(format_line(found))
    return 0
