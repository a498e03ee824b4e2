"""Console command ``bertmill``: runs a subcommand. Prints an expected error as one line and exits with 2."""

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Sequence

from schemas.errors import BertmillError
from schemas.versions import CODE_VERSION

# The two jobs have their own parsers.
_JOBS = {
    "build": ("pipeline.build_corpus", "build a corpus: raw dumps to shards (a Ray job)"),
    "pretrain": ("trainer.pretrain", "pretrain a model on a corpus (a Ray job)"),
}
# A command loads its own module only, because all of them together take a third of a second.
_COMMANDS = {
    "fetch": "bertmill.cli.corpus.fetch",
    "plan": "bertmill.cli.plan",
    "submit": "bertmill.cli.submit",
    "verify": "bertmill.cli.corpus.verify",
    "inspect": "bertmill.cli.corpus.inspect",
    "explain": "bertmill.cli.corpus.explain",
    "templates": "bertmill.cli.corpus.templates",
    "checkpoints": "bertmill.cli.runs.checkpoints",
    "rewind": "bertmill.cli.runs.rewind",
    "report": "bertmill.cli.runs.report",
    "losses": "bertmill.cli.runs.losses",
    "evaluate": "bertmill.cli.models.evaluate",
    "export": "bertmill.cli.models.export",
    "fill": "bertmill.cli.models.fill",
    "finetune": "bertmill.cli.models.finetune",
    "predict": "bertmill.cli.models.predict",
    "scorecard": "bertmill.cli.models.scorecard",
    "doctor": "bertmill.cli.doctor",
    "demo-summary": "bertmill.cli.demo_summary",
}
GROUPS = {
    "jobs": ("build", "pretrain", "plan", "submit"),
    "corpus": ("fetch", "inspect", "explain", "templates", "verify"),
    "training runs": ("checkpoints", "rewind", "report", "losses"),
    "models": ("evaluate", "export", "fill", "finetune", "predict", "scorecard"),
    "installation": ("doctor", "demo-summary"),
}
"""The subcommands as --help shows them."""


class _GroupedHelp(argparse.HelpFormatter):
    """Lists the subcommands under the titles of GROUPS."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        listed = {choice.dest: choice for choice in action._choices_actions}
        self._indent()
        groups = [
            f"  {title}:\n" + "".join(self._format_action(listed[name]) for name in names)
            for title, names in GROUPS.items()
        ]
        self._dedent()
        return "\n".join(groups)


def argument_parser(names: Iterable[str] = tuple(_COMMANDS)) -> argparse.ArgumentParser:
    """The parser of these subcommands. It has the names of the jobs, but not their arguments."""
    parser = argparse.ArgumentParser(
        prog="bertmill",
        description="From raw multilingual Wikipedia dumps and BookCorpus to a trained BERT.",
        epilog="`bertmill COMMAND --help` explains a command. Exit status 2 means a user's mistake.",
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action="version", version=f"bertmill {CODE_VERSION}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, (_, text) in _JOBS.items():
        commands.add_parser(name, help=text, add_help=False)
    for name in names:
        importlib.import_module(_COMMANDS[name]).add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status (0, or 2 for a user's mistake)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in _JOBS:
            job = importlib.import_module(_JOBS[arguments[0]][0])
            return int(job.main(arguments[1:]))
        named = arguments[:1] if arguments and arguments[0] in _COMMANDS else tuple(_COMMANDS)
        parsed = argument_parser(named).parse_args(arguments)
        return int(parsed.execute(parsed))
    except BertmillError as error:
        print(f"bertmill: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        # Any storage call may raise it. Commands that read a file which may be missing give more detail.
        print(f"bertmill: {error}: no such file", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has ended (`| head`). Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
