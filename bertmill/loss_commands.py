"""``bertmill losses``: keeps the losses of a run, or compares them with kept ones."""

import argparse

from trainer.golden import DEFAULT_TOLERANCE, compare_golden, losses_of, write_golden


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``losses`` to the console command."""
    parser = commands.add_parser(
        "losses",
        help="print, keep or compare the losses of a run",
        description="Prints the loss of each logged step; --write keeps them in a file; --against compares "
        "them with such a file and ends with status 1 when they differ.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder or URI")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", metavar="FILE", help="keep the losses in this file")
    group.add_argument("--against", metavar="FILE", help="compare with the losses in this file")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=DEFAULT_TOLERANCE,
        metavar="X",
        help=f"relative difference that is allowed (default {DEFAULT_TOLERANCE})",
    )
    parser.set_defaults(execute=_execute)


def _execute(arguments: argparse.Namespace) -> int:
    if arguments.write:
        count = write_golden(arguments.run, arguments.write)
        print(f"{count} losses written to {arguments.write}")
        return 0
    if not arguments.against:
        for step, loss in sorted(losses_of(arguments.run).items()):
            print(f"{step}\t{loss}")
        return 0
    differences = compare_golden(arguments.run, arguments.against, arguments.tolerance)
    for difference in differences[:10]:
        print(difference)
    print(f"{len(differences)} steps differ" if differences else "the losses are equal")
    return 1 if differences else 0
