"""``bertmill rewind``: takes a training run back to one of its checkpoints."""

import argparse

from bertmill.cli.argument_types import Commands, natural


def add_parser(commands: Commands) -> None:
    """Adds ``rewind`` to the console command."""
    parser = commands.add_parser(
        "rewind",
        help="take a run back to an earlier checkpoint",
        description="Makes the checkpoint of a step, with the state of the optimizer, the one from which the "
        "run resumes. Deletes nothing. Refuses a run that is training. `bertmill checkpoints RUN` lists the "
        "steps.",
    )
    parser.add_argument("run", metavar="RUN", help="folder or URI of the run")
    parser.add_argument("--step", type=natural, required=True, metavar="N", help="step of the checkpoint")
    parser.add_argument(
        "--skip-data",
        type=natural,
        default=0,
        metavar="M",
        help="leave out the data of the M steps after it (default: 0)",
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Rewinds the run and prints the new checkpoint."""
    from trainer.run.rewind import rewind

    uri = rewind(arguments.run, arguments.step, arguments.skip_data)
    print(f"{uri}: the run resumes after step {arguments.step}")
    return 0
