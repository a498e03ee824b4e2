"""Where a relative path of a job's output lies.

A job submitted with a working directory runs in a copy of it that Ray removes afterwards, on every node
another one. What is written there would be lost, so relative outputs go to a lasting folder instead:
BERTMILL_HOME, or ``bertmill`` in the home directory. In a process of one's own they are what they look like.
"""

import logging
import os
from pathlib import Path

from cluster import storage

LOG = logging.getLogger("bertmill")
_COPY = "working_dir_files"  # the folder in which Ray unpacks working directories


def lasting(path: str) -> str:
    """``path`` made absolute if it is a relative local path, and said so if it is not below this folder."""
    if storage.scheme(path) != "file" or "://" in path or Path(path).is_absolute():
        return path
    here = Path.cwd()
    if _COPY not in here.parts:
        return str(here / path)
    home = Path(os.environ.get("BERTMILL_HOME") or Path.home() / "bertmill")
    LOG.info("%s: a submitted job's own folder is removed after it, so this is %s", path, home / path)
    return str(home / path)


def lasting_input(path: str) -> str:
    """As ``lasting``, but what lies in a submitted job's own folder stays relative: every node has a copy."""
    submitted = storage.scheme(path) == "file" and _COPY in Path.cwd().parts
    return path if submitted and Path(path).exists() else lasting(path)
