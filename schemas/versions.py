"""The version of this code, as written into manifests and checkpoints."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _code_version() -> str:
    """The checkout's version where there is one, else the installed package's.

    A job runs in an uploaded copy of a checkout that is not installed there; it must not write another
    version than the same checkout where it is.
    """
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        found = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if found.get("name") == "bertmill":
            return str(found["version"])
    try:
        return version("bertmill")
    except PackageNotFoundError:
        return "0+unknown"


CODE_VERSION = _code_version()
