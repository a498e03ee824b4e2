"""Sorts the text of the first model into files by its source, so that extraction has more than one unit.

python -m benchmarks.recipe.first_model_text DATA_FOLDER/pretrain/english.jsonl.zst text
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from benchmarks.recipe.text import distribute, lines_of

# Collector of the text -> the edition and date of its Wikipedia.
SOURCES = {
    "github:Hasan72341/Mini-Search-Engine": "enwiki-2025",
    "github:ZhouYii/PatchedDistro": "enwiki-older",
    "github:taminemelissa/quiz-generator": "simplewiki",
}
PARTS = 8
"""Files of each source."""


def split(origin: Path, folder: Path) -> Counter[str]:
    """Writes ``folder``/SOURCE-PART.jsonl.zst, lines unchanged and in order. Returns the lines per source."""
    return distribute(lines_of(origin), folder, lambda record: SOURCES[record["source"]], PARTS)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("origin", type=Path, help="the JSON lines")
    parser.add_argument("folder", type=Path, help="where the files go")
    arguments = parser.parse_args()
    for name, count in split(arguments.origin, arguments.folder).items():
        print(f"{name}: {count} documents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
