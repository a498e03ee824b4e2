"""``bertmill verify``: checks a corpus, a run or a checkpoint completely."""

import argparse

from bertmill.cli.argument_types import Commands, positive
from cluster import storage
from pipeline.verify.corpus import verify_corpus
from trainer.checkpoint.manifest import MANIFEST


def add_parser(commands: Commands) -> None:
    """Adds ``verify`` to the console command."""
    parser = commands.add_parser(
        "verify",
        help="check every byte and rule of a corpus, a run or a checkpoint",
        description="Checks a corpus against its manifest (files, checksums, vocabulary, every row, counts, "
        "balance), all checkpoints of a run, or one checkpoint. Exit status 1 means that a check failed.",
    )
    parser.add_argument("place", metavar="CORPUS|RUN|CHECKPOINT", help="folder or URI, or a corpus manifest")
    parser.add_argument(
        "--cores",
        type=positive,
        metavar="N",
        help="cores that check a corpus (default: all)",
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the problems. Returns 0 when there are none, else 1."""
    place = arguments.place
    if not place.endswith(".json") and storage.exists(storage.join(place, MANIFEST)):
        return _verify_checkpoint(place)
    if not place.endswith(".json") and storage.list_files(storage.join(place, "checkpoints")):
        return _verify_run(place)
    report = verify_corpus(place, arguments.cores)
    for line in report.lines():
        print(line)
    return 0 if report.sound else 1


def _verify_checkpoint(uri: str) -> int:
    from trainer.checkpoint.reading import open_checkpoint

    with open_checkpoint(uri) as checkpoint:
        checkpoint.verify()
        print(f"{uri}: sound (step {checkpoint.step})")
    return 0


def _verify_run(uri: str) -> int:
    from trainer.checkpoint.listing import verify_run

    problems = verify_run(uri)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{uri}: sound, every checkpoint can be used")
    return 1 if problems else 0
