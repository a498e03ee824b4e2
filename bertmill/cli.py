"""Console command ``bertmill``: finds the subcommand, prints expected errors as one line, exits 2."""

import argparse
import os
import sys
from collections.abc import Sequence

from bertmill import (
    corpus_commands,
    demo,
    doctor,
    explain,
    loss_commands,
    model_commands,
    plan,
    run_report,
    submit,
    task_commands,
)
from schemas.errors import BertmillError
from schemas.versions import CODE_VERSION

# Subcommands that are job entry files or whole programs with their own argument parser.
_PROGRAMS = {
    "build": ("pipeline.build_corpus", "build a corpus: raw dumps to shards (a Ray job)"),
    "pretrain": ("trainer.pretrain", "train from shards (a Ray job)"),
}


def argument_parser() -> argparse.ArgumentParser:
    """The parser of all commands but those in _PROGRAMS, which parse for themselves."""
    parser = argparse.ArgumentParser(
        prog="bertmill",
        description="From raw multilingual Wikipedia dumps and BookCorpus to a trained BERT.",
    )
    parser.add_argument("--version", action="version", version=f"bertmill {CODE_VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, text) in _PROGRAMS.items():
        commands.add_parser(name, help=text, add_help=False)
    explain.add_parser(commands)
    doctor.add_parser(commands)
    submit.add_parser(commands)
    plan.add_parser(commands)
    corpus_commands.add_parsers(commands)
    model_commands.add_parsers(commands)
    demo.add_parser(commands)
    task_commands.add_parsers(commands)
    run_report.add_parser(commands)
    loss_commands.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status (0, or 2 for a user's mistake)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in _PROGRAMS:
            return _run_program(words[0], words[1:])
        arguments = argument_parser().parse_args(words)
        return int(arguments.execute(arguments))
    except BertmillError as error:
        print(f"bertmill: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        # Storage says so everywhere; who reads a file that may be missing says more.
        print(f"bertmill: {error}: no such file", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has left (`| head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run_program(name: str, words: list[str]) -> int:
    import importlib

    program = importlib.import_module(_PROGRAMS[name][0])
    return int(program.main(words))
