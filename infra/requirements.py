"""Prints the requirements of the image except torch, one on each line, for a layer without our code."""

import sys
import tomllib
from pathlib import Path


def requirements(text: str) -> list[str]:
    """The dependencies in the text of a pyproject.toml, its build system's and Google Cloud's, without torch.

    The dependencies include those of AWS, so one image serves both clouds.
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
