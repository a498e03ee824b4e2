"""``bertmill verify`` and ``inspect``: the arguments and what is printed."""

import argparse

from bertmill.argument_types import natural
from cluster import storage
from pipeline.inspect_shards import inspect_rows
from pipeline.verify import verify_corpus

# As trainer.checkpoint_format names it; that module is loaded only for a checkpoint.
_CHECKPOINT_MANIFEST = "MANIFEST.json"


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the two commands to the console command."""
    parser = commands.add_parser(
        "verify",
        help="check every byte and rule of a corpus, a run or a checkpoint",
        description="Checks a corpus against its manifest (files, checksums, vocabulary, every row, counts, "
        "balance), all checkpoints of a run, or one. Exit status 1 when something is wrong.",
    )
    parser.add_argument("place", metavar="CORPUS|RUN|CHECKPOINT", help="folder or URI, or a corpus manifest")
    parser.set_defaults(execute=_verify)
    parser = commands.add_parser(
        "inspect",
        help="show rows of a shard as text",
        description="Prints rows of a corpus as text, with the masked words and what stands in their place.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="folder or URI of a corpus, or its manifest")
    parser.add_argument(
        "--shard", metavar="PATH", help="as the manifest names it (default: the first that fits)"
    )
    parser.add_argument("--lang", metavar="CODE", help="rows of this language only")
    parser.add_argument(
        "--start", type=natural, default=0, metavar="N", help="number of the first row (default 0)"
    )
    parser.add_argument("--rows", type=natural, default=5, metavar="N", help="rows to show (default 5)")
    parser.set_defaults(execute=_inspect)


def _verify(arguments: argparse.Namespace) -> int:
    place = arguments.place
    if not place.endswith(".json") and storage.exists(storage.join(place, _CHECKPOINT_MANIFEST)):
        return _verify_checkpoint(place)
    if not place.endswith(".json") and storage.list_files(storage.join(place, "checkpoints")):
        return _verify_run(place)
    report = verify_corpus(place)
    for line in report.lines():
        print(line)
    return 0 if report.sound else 1


def _verify_checkpoint(uri: str) -> int:
    from trainer.checkpoint import open_checkpoint

    with open_checkpoint(uri) as checkpoint:
        checkpoint.verify()
        print(f"{uri}: sound (step {checkpoint.step})")
    return 0


def _verify_run(uri: str) -> int:
    from trainer.checkpoint_listing import verify_run

    problems = verify_run(uri)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{uri}: sound, every checkpoint can be used")
    return 1 if problems else 0


def _inspect(arguments: argparse.Namespace) -> int:
    for line in inspect_rows(
        arguments.corpus, arguments.shard, arguments.start, arguments.rows, arguments.lang
    ):
        print(line)
    return 0
