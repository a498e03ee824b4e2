"""The reference page of the command line, from the argparse parsers."""

import argparse
from collections.abc import Iterator

from bertmill.cli.command import argument_parser
from pipeline import build_corpus
from trainer import pretrain

_JOBS = {
    "build": (build_corpus.argument_parser, "build-config.md"),
    "pretrain": (pretrain.argument_parser, "training-config.md"),
}
_ENTRY_FILES = (
    "The entry files `pipeline/build_corpus.py` and `trainer/pretrain.py` are the same programs as "
    "`bertmill build` and `bertmill pretrain`."
)
_EXIT = """| status | meaning |
|---|---|
| 0 | success |
| 1 | `verify` found faults, or a submitted job failed |
| 2 | a mistake in the command, a config or an input, which one line on stderr explains |
| 143 | `build`, `pretrain`, `finetune` or `scorecard` stopped on a signal and can resume: rerun it |
| 130 | Ctrl-C in any other command |
"""


def page() -> str:
    """The Markdown of the page: a table of all commands, then a section for each."""
    commands = dict(_subcommands(argument_parser()))
    lines = ["# Command line", "", "| command | purpose |", "|---|---|"]
    lines += [f"| [`bertmill {name}`](#bertmill-{name}) | {text} |" for name, (_, text) in commands.items()]
    lines += ["", _ENTRY_FILES, "", "## Exit status", "", _EXIT]
    for name, (parser, text) in commands.items():
        if name in _JOBS:
            make, config = _JOBS[name]
            end = f"Set any [field of the config]({config}) as `--section.field=value`."
            lines += [*_section(f"bertmill {name}", make(), text), end, ""]
        else:
            lines += _section(f"bertmill {name}", parser, text)
    return "\n".join(lines)


def _section(title: str, parser: argparse.ArgumentParser, text: str) -> list[str]:
    """The heading, usage and arguments of a command, then those of its subcommands."""
    nested = list(_subcommands(parser))
    description = parser.description or f"{text[:1].upper()}{text[1:]}."
    lines = [f"{'#' * (title.count(' ') + 1)} {title}", "", _plain(description), ""]
    if not nested:
        lines += ["```text", _usage(parser, title), "```", "", *_arguments(parser), ""]
    for name, (inner, inner_text) in nested:
        lines += _section(f"{title} {name}", inner, inner_text)
    return lines


def _usage(parser: argparse.ArgumentParser, title: str) -> str:
    formatter = argparse.HelpFormatter(prog=title, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    actions = [action for action in actions if not isinstance(action, argparse._HelpAction)]
    if not actions:
        return
    yield from ("| argument | meaning |", "|---|---|")
    for action in actions:
        names = (
            ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
        )
        choices = (
            f" One of {', '.join(f'`{choice}`' for choice in action.choices)}." if action.choices else ""
        )
        needed = " Required." if action.required and action.option_strings else ""
        text = parser._get_formatter()._expand_help(action) if action.help else ""
        sentence = f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." if text else ""
        yield f"| {names} | {_plain(sentence)}{choices}{needed} |".replace("  ", " ")


def _plain(text: str) -> str:
    """Text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, tuple[argparse.ArgumentParser, str]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                if name in texts:
                    yield name, (inner, texts[name])
