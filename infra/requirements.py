"""Prints what pyproject.toml requires, torch left out, one requirement a line: a layer without our code."""

import sys
import tomllib
from pathlib import Path


def requirements(text: str) -> list[str]:
    """The dependencies in the text of a pyproject.toml and of its build system, but torch."""
    data = tomllib.loads(text)
    wanted = [*data["build-system"]["requires"], *data["project"]["dependencies"]]
    return [one for one in wanted if not one.startswith("torch")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
