"""Sorts the text of the first model into files by its source, so that extraction has more than one unit.

python -m benchmarks.first_model_text DATA_FOLDER/pretrain/english.jsonl.zst text
"""

import argparse
import contextlib
import io
import json
import sys
from collections import Counter
from pathlib import Path

import zstandard

# Who gathered the text -> which Wikipedia of which age it is.
SOURCES = {
    "github:Hasan72341/Mini-Search-Engine": "enwiki-2025",
    "github:ZhouYii/PatchedDistro": "enwiki-older",
    "github:taminemelissa/quiz-generator": "simplewiki",
}
PARTS = 8
"""Files of each source."""


def split(origin: Path, folder: Path) -> Counter[str]:
    """Writes ``folder``/SOURCE-PART.jsonl.zst, lines unchanged and in order; the lines of each source."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as files:
        lines = files.enter_context(
            io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(origin.open("rb")), encoding="utf-8")
        )
        outputs = {
            (name, part): files.enter_context(
                zstandard.open(folder / f"{name}-{part}.jsonl.zst", "wt", encoding="utf-8")
            )
            for name in SOURCES.values()
            for part in range(PARTS)
        }
        for line in lines:
            name = SOURCES[json.loads(line)["source"]]
            outputs[name, counts[name] % PARTS].write(line)
            counts[name] += 1
    return counts


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
