"""The command line of both jobs: a config, overrides of its fields, a dry run."""

import argparse

from pydantic import BaseModel

from cluster.jobs.config_file import field_help


def job_parser(program: str, what: str, example: str, config: type[BaseModel]) -> argparse.ArgumentParser:
    """A parser of a job. ``parse_known_args`` leaves overrides such as ``example`` for `load_config`.

    Its help ends with every field of ``config``, its default and its meaning.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=f"{what} Override any field of the config on the command line, for example {example}.",
        epilog="fields of the config:\n" + field_help(config),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="YAML", help="path or URI of the config")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved config and the plan, then exit"
    )
    return parser
