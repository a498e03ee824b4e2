"""The console command ``bertmill``: a module for each subcommand."""

import sys
from collections.abc import Sequence

from bertmill.package_roots import foreign_package


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status (0, or 2 for a user's mistake)."""
    problem = foreign_package()
    if problem is not None:
        print(f"bertmill: {problem}", file=sys.stderr)
        return 2
    # Imported late, because these modules import the packages that were just checked.
    from bertmill.cli.command import main as run

    return run(argv)
