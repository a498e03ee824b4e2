"""The corpus job: raw dumps to shards.

    python pipeline/build_corpus.py --config configs/demo.yaml [--dry-run] [--dedup.near=true]
    ray job submit --working-dir . -- python pipeline/build_corpus.py --config configs/wikipedia-104.yaml

Killed at any moment, it goes on where it was when started again with the same line.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from cluster.config_file import load_config
from cluster.job_arguments import job_parser
from pipeline.config import BuildConfig
from schemas.errors import BertmillError


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The known arguments, and the ``--field=value`` overrides."""
    parser = job_parser(
        "build_corpus.py",
        "Builds a corpus of BERT pre-training shards from raw dumps.",
        "--dedup.near=true, --sources.0.paths='[a.xml.bz2]'",
        BuildConfig,
    )
    parser.add_argument(
        "--cpus", type=int, metavar="N", help="CPUs of the Ray that is started here, when one is"
    )
    return parser.parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job. Returns 0, or 2 with one line on stderr for a user's mistake."""
    arguments, overrides = parse_arguments(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bertmill").setLevel(logging.INFO)
    try:
        config = load_config(BuildConfig, arguments.config, overrides)
        # Imported late: --help and a misspelt config should not wait for Ray.
        from pipeline.build import build, dry_run

        print(dry_run(config) if arguments.dry_run else build(config, num_cpus=arguments.cpus))
    except BertmillError as error:
        print(f"build_corpus: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
