"""``bertmill templates``: shows what a build learned about the templates of a wiki."""

import argparse

from bertmill.cli.argument_types import Commands
from schemas.errors import ConfigError


def add_parser(commands: Commands) -> None:
    """Adds ``templates`` to the console command."""
    parser = commands.add_parser(
        "templates",
        help="show what a build learned about a wiki's templates",
        description="Prints what the templates of a wiki show, the most used first: how often articles use "
        "each, its kind, the arguments that it shows and the wikitext that a call expands to. "
        "A file named by extraction.template_rules overrides any of them.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="folder or URI of a corpus, also while it is built")
    parser.add_argument("wiki", metavar="WIKI", help="database name of the wiki, such as enwiki")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table. Raises CorpusError if the corpus has no table, ConfigError for an unknown wiki."""
    from pipeline.documents.templates.tables import describe
    from pipeline.stages.templates import open_tables

    templates = open_tables(arguments.corpus)
    file = templates.files.get(arguments.wiki)
    if file is None:
        known = ", ".join(sorted(templates.files))
        raise ConfigError(f"{arguments.corpus}: no wiki {arguments.wiki!r}; its wikis are {known}")
    for line in describe(file.load(), templates.counts[arguments.wiki]):
        print(line)
    return 0
