"""The version of this code, as written into manifests and checkpoints."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _code_version() -> str:
    """The version of the checkout if it exists, else of the installed package.

    A submitted job runs in an uploaded copy of the checkout, which is not installed but must write the same
    version.
    """
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        project_table = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if project_table.get("name") == "bertmill":
            return str(project_table["version"])
    try:
        return version("bertmill")
    except PackageNotFoundError:
        return "0+unknown"


CODE_VERSION = _code_version()
