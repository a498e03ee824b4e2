"""``bertmill checkpoints``: the checkpoints of a run."""

import argparse

from bertmill.cli.argument_types import Commands


def add_parser(commands: Commands) -> None:
    """Adds ``checkpoints`` to the console command."""
    parser = commands.add_parser(
        "checkpoints", help="list a run's checkpoints and verify each", description="Lists the checkpoints "
        "of a run, newest first, with step, attempt, age, size, and whether each can be used."
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", help="folder or URI of the run")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each checkpoint."""
    from trainer.checkpoint.listing import format_line, list_checkpoints

    for checkpoint in list_checkpoints(arguments.run):
        print(format_line(checkpoint))
    return 0
