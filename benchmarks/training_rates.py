"""Puts measured training rates into bertmill/rates.json, in place of those of other programs.

    python benchmarks/training_rates.py benchmarks/results/train_throughput.jsonl [--write]

A line of the file is one measurement: ``model`` (base, large, ...), ``max_seq_length``, ``vocab_size``,
``rows_per_second`` of one GPU on rows that are full, ``device``, ``date`` and, if wished, ``what`` (a word on
the circumstances). Of several lines for one model and length the last one counts, and only lines of the
device that rates.json names. Afterwards: python benchmarks/write_scaling.py.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RATES = Path(__file__).resolve().parents[1] / "bertmill" / "rates.json"
FIELDS = {"model": str, "max_seq_length": int, "vocab_size": int, "rows_per_second": (int, float),
          "device": str, "date": str}  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    """The measurements in ``path``. Raises SystemExit that names the line of a wrong one."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = json.loads(text)
        wrong = [name for name, kind in FIELDS.items() if not isinstance(line.get(name), kind)]
        if wrong:
            raise SystemExit(f"{path}:{number}: {', '.join(wrong)}: missing or of a wrong type")
        found.append(line)
    return found


def update(training: dict[str, Any], measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replaces what was measured in ``training``; the new rates. Lines of another device are left out."""
    ours = {
        _key(line): {
            **{name: line[name] for name in FIELDS},
            "rows_per_second": float(f"{line['rows_per_second']:.4g}"),
            "origin": "ours",
            "what": line.get("what", "full rows"),
        }
        for line in measurements
        if line["device"] == training["device"]
    }
    kept = [rate for rate in training["rates"] if _key(rate) not in ours]
    training["rates"] = sorted([*kept, *ours.values()], key=_key)
    return list(ours.values())


def _key(rate: Mapping[str, Any]) -> tuple[str, int]:
    return rate["model"], rate["max_seq_length"]


def main() -> None:
    """Prints the new rates; with --write, keeps them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rates = json.loads(RATES.read_text(encoding="utf-8"))
    new = update(rates["training"], read(arguments.file))
    if not new:
        raise SystemExit(f"{arguments.file}: no measurement on {rates['training']['device']}")
    print(json.dumps(new, indent=1))
    if arguments.write:
        RATES.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
