"""``python -m bertmill`` is the console command."""

import sys

from bertmill.cli import main

sys.exit(main())
