"""Prints what the image needs, torch left out, one requirement a line: a layer without our code."""

import sys
import tomllib
from pathlib import Path


def requirements(text: str) -> list[str]:
    """The dependencies in the text of a pyproject.toml, of its build system and of Google Cloud, but torch.

    What AWS needs is among the dependencies; one image serves both clouds.
    """
    data = tomllib.loads(text)
    project = data["project"]
    wanted = [
        *data["build-system"]["requires"],
        *project["dependencies"],
        *project["optional-dependencies"]["gcp"],
    ]
    return [one for one in wanted if not one.startswith("torch")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
