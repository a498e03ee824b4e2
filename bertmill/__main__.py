"""``python -m bertmill`` is the console command."""

import sys

from bertmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
