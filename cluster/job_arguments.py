"""The command line that both jobs share: a config, overrides of its fields, a dry run."""

import argparse

from pydantic import BaseModel

from cluster.config_file import field_help


def job_parser(program: str, what: str, example: str, config: type[BaseModel]) -> argparse.ArgumentParser:
    """A parser whose ``parse_known_args`` leaves overrides such as ``example`` to ``load_config``.

    The help ends with every field of ``config``, its default and its meaning.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"{what} Any field of the config can be set from the command line: {example}.",
        epilog="fields of the config:\n" + field_help(config),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="YAML", help="the config: a path or URI")
    parser.add_argument("--dry-run", action="store_true", help="show the config and the work, touch nothing")
    return parser
