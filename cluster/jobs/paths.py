"""Resolves the paths of a job.

`Location` is the type of a config field that holds a path or URI. It expands ``~`` and variables, and
rejects anything else.

A job that was submitted with a working directory runs in a copy of it. Each node has its own copy, and Ray
removes it after the job. Output there would be lost, so relative output paths are below a permanent folder:
BERTMILL_HOME, or ``bertmill`` in the home directory. In any other process relative paths have their usual
meaning.
"""

import logging
import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from cluster import storage
from schemas.errors import ConfigError

logger = logging.getLogger(__name__)

_JOB_COPIES = "working_dir_files"  # the folder in which Ray unpacks working directories


_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})")


def expand_location(text: str) -> str:
    """``text`` with ``~`` and environment variables expanded. Raises ValueError when it cannot be a location.

    >>> os.environ["BUCKET"] = "b"
    >>> expand_location("s3://$BUCKET/runs")
    's3://b/runs'
    """
    if not text.strip():
        raise ValueError("must be a path or URI, not an empty text")
    unset = [name for match in _VARIABLE.finditer(text) if (name := match[1] or match[2]) not in os.environ]
    if unset:
        raise ValueError(f"{text!r}: the environment variable {unset[0]!r} is not set")
    expanded = os.path.expandvars(text)
    if expanded.startswith("~"):
        home = os.path.expanduser(expanded)  # noqa: PTH111 - Path would raise for an unknown user
        if home.startswith("~"):
            raise ValueError(f"{text!r}: no user of that name has a home folder")
        expanded = home
    problem = storage.malformed(expanded)
    if problem is not None:
        raise ValueError(problem)
    return expanded


Location = Annotated[str, AfterValidator(expand_location)]
"""A path or URI in a config."""


def resolve_output_path(path: str) -> str:
    """``path`` as an absolute path, or the URI unchanged. Logs a path that leads to the permanent folder."""
    if storage.scheme(path) != "file" or "://" in path or Path(path).is_absolute():
        return path
    here = Path.cwd()
    if _JOB_COPIES not in here.parts:
        return str(here / path)
    try:
        resolved = Path(os.environ.get("BERTMILL_HOME") or Path.home() / "bertmill") / path
    except RuntimeError as error:
        raise ConfigError(f"{path}: this user has no home folder; set BERTMILL_HOME, or use a URI") from error
    logger.info("%s: Ray removes the job's own folder after the job; using %s", path, resolved)
    return str(resolved)


def resolve_input_path(path: str) -> str:
    """As `resolve_output_path`, but a path inside a submitted job's folder stays relative.

    Every node has its own copy of that folder.
    """
    submitted = storage.scheme(path) == "file" and _JOB_COPIES in Path.cwd().parts
    return path if submitted and Path(path).exists() else resolve_output_path(path)
