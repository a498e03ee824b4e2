"""The corpus job: raw dumps to shards.

    python pipeline/build_corpus.py --config configs/demo.yaml [--dry-run] [--dedup.near=true]
    ray job submit --working-dir . -- python pipeline/build_corpus.py --config configs/wikipedia-104.yaml

Kill it at any time and rerun the same command. It resumes from its committed units.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # When run as a script, import the packages of this checkout instead of this folder's modules.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cluster.jobs import shutdown
from cluster.jobs.arguments import job_parser
from cluster.jobs.config_file import load_config
from cluster.jobs.job_process import run_job
from pipeline.config import BuildConfig
from schemas.errors import BertmillError


def argument_parser() -> argparse.ArgumentParser:
    """The parser of this job. It leaves ``--field=value`` overrides to the caller."""
    parser = job_parser(
        "build_corpus.py",
        "Builds a corpus of BERT pre-training shards from raw dumps.",
        "--dedup.near=true, --sources.0.paths='[a.xml.bz2]'",
        BuildConfig,
    )
    parser.add_argument(
        "--cpus", type=int, metavar="N", help="CPUs of the local Ray, when the job starts one (default: all)"
    )
    return parser


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The known arguments, and the ``--field=value`` overrides."""
    return argument_parser().parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job. 0: finished. 143: stopped by SIGTERM or Ctrl-C. 2: a user's mistake, in one line."""
    arguments, overrides = parse_arguments(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    for package in ("bertmill", "cluster", "pipeline"):
        logging.getLogger(package).setLevel(logging.INFO)
    try:
        with shutdown.handled(), shutdown.interruptible():
            _run(arguments, overrides)
    except (shutdown.Interrupted, KeyboardInterrupt):
        print("build_corpus: stopped; rerun the same command to resume", file=sys.stderr)
        return shutdown.EXIT_STOPPED
    except BertmillError as error:
        print(f"build_corpus: {error}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    config = load_config(BuildConfig, arguments.config, overrides)
    # Imported late: --help and a misspelled config should not wait for Ray.
    from pipeline.build import build, dry_run

    print(dry_run(config) if arguments.dry_run else build(config, num_cpus=arguments.cpus))


if __name__ == "__main__":
    sys.exit(run_job(main))
