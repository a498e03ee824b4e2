"""``bertmill inspect``: rows of a shard as text."""

import argparse

from bertmill.cli.argument_types import Commands, natural
from pipeline.verify.inspect_shards import inspect_rows


def add_parser(commands: Commands) -> None:
    """Adds ``inspect`` to the console command."""
    parser = commands.add_parser(
        "inspect",
        help="show rows of a corpus as text, with their masks",
        description="Prints rows of a corpus as text, with each masked token and what replaces it, and with "
        "title, revision and URL of the document when the corpus has its documents (publish.documents).",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="folder or URI of a corpus, or its manifest")
    parser.add_argument(
        "--shard", metavar="PATH", help="path of the shard in the manifest (default: the first that fits)"
    )
    parser.add_argument("--lang", metavar="CODE", help="show rows of this language only")
    parser.add_argument("--start", type=natural, default=0, metavar="N", help="first row (default: 0)")
    parser.add_argument("--rows", type=natural, default=5, metavar="N", help="rows to show (default: 5)")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the rows."""
    for line in inspect_rows(
        arguments.corpus, arguments.shard, arguments.start, arguments.rows, arguments.lang
    ):
        print(line)
    return 0
