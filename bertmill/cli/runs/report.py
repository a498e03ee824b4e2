"""``bertmill report``: a training run as an HTML page."""

import argparse

from bertmill.cli.argument_types import Commands
from bertmill.run_report import report_page
from cluster import storage
from trainer.monitoring.history import read_history


def add_parser(commands: Commands) -> None:
    """Adds ``report`` to the console command."""
    parser = commands.add_parser(
        "report",
        help="write a training run as an HTML page",
        description="Writes one page with the loss, accuracy by language, learning rate, throughput, faults "
        "and resumes of a run, on one time axis, from the logs of all its attempts.",
    )
    parser.add_argument("run", metavar="RUN", help="folder or URI of the run")
    parser.add_argument("--to", metavar="FILE", help="file to write (default: RUN/report.html)")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and prints where."""
    target = arguments.to or storage.join(arguments.run, "report.html")
    storage.put_bytes(target, report_page(read_history(arguments.run)).encode())
    print(f"written to {target}")
    return 0
