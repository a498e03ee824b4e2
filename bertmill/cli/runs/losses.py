"""``bertmill losses``: prints or saves the losses of a run, or compares them with saved ones."""

import argparse

from bertmill.cli.argument_types import Commands
from trainer.monitoring.losses import DEFAULT_TOLERANCE, compare_losses, read_losses, write_losses

_MAX_LINES = 10


def add_parser(commands: Commands) -> None:
    """Adds ``losses`` to the console command."""
    parser = commands.add_parser(
        "losses",
        help="print, save or compare the losses of a run",
        description="Prints the loss of each logged step. --write saves the losses to a file. --against "
        "compares them with such a file; exit status 1 means that they differ.",
    )
    parser.add_argument("run", metavar="RUN", help="folder or URI of the run")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", metavar="FILE", help="save the losses to this file")
    group.add_argument("--against", metavar="FILE", help="compare with the losses in this file")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=DEFAULT_TOLERANCE,
        metavar="X",
        help=f"largest relative difference to accept (default: {DEFAULT_TOLERANCE})",
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0, or 1 when the losses differ from the saved ones."""
    if arguments.write:
        count = write_losses(arguments.run, arguments.write)
        print(f"{count} losses written to {arguments.write}")
        return 0
    if not arguments.against:
        for step, loss in sorted(read_losses(arguments.run).items()):
            print(f"{step}\t{loss}")
        return 0
    differences = compare_losses(arguments.run, arguments.against, arguments.tolerance)
    for difference in differences[:_MAX_LINES]:
        print(difference)
    print(f"{len(differences)} steps differ" if differences else "the losses are equal")
    return 1 if differences else 0
