"""Puts measured training rates into bertmill/planning/rates.json, in place of those of other programs.

    python -m benchmarks.rates.training_rates benchmarks/results/train_throughput.jsonl [--write]

The script uses the lines of train_throughput.py that are ours (``variant``, default "ours":
dropout as in the configs), on one GPU of the kind that rates.json names, with full rows: cases named
SIZE-LENGTH, with 30,528 pieces, and SIZE-LENGTH-119k, with 119,552. The last line of a case counts. Then run
python -m benchmarks.rates.write_scaling.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

RATES = Path(__file__).resolve().parents[2] / "bertmill" / "planning" / "rates.json"
_CASE = re.compile(r"(\w+)-(\d+)(-119k)?")
_KINDS: dict[str, type | tuple[type, ...]] = {
    "case": str,
    "variant": str,
    "card": str,
    "date": str,
    "ranks": int,
    "rows_per_second": (int, float),
}


def read(path: Path, device: str, variant: str = "ours") -> list[dict[str, Any]]:
    """The rates to use from ``path``, as rates.json has them. Raises SystemExit for an invalid line."""
    found = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = json.loads(text)
        # The lines of transformers have the same fields.
        wrong = [name for name, kind in _KINDS.items() if not isinstance(line.get(name), kind)]
        if wrong:
            raise SystemExit(f"{path}:{number}: {', '.join(wrong)}: missing or of a wrong type")
        case = _CASE.fullmatch(line["case"])
        if case is None or (line["variant"], line["card"], line["ranks"]) != (variant, device, 1):
            continue
        found[line["case"]] = {
            "model": case[1],
            "max_seq_length": int(case[2]),
            "vocab_size": 119_552 if case[3] else 30_528,
            "rows_per_second": float(f"{line['rows_per_second']:.4g}"),
            "origin": "ours",
            "device": device,
            "date": line["date"],
            "what": f"full sequences, benchmarks/training/train_throughput.py {line['case']}:{variant}",
        }
    return list(found.values())


def update(training: dict[str, Any], ours: list[dict[str, Any]]) -> None:
    """Replaces every rate in ``training`` of a size and length that ``ours`` has."""

    def key(rate: dict[str, Any]) -> tuple[str, int]:
        return rate["model"], rate["max_seq_length"]

    measured = {key(rate) for rate in ours}
    kept = [rate for rate in training["rates"] if key(rate) not in measured]
    training["rates"] = sorted([*kept, *ours], key=lambda rate: (*key(rate), rate["vocab_size"]))


def main() -> None:
    """Prints the rates to use. With --write, stores them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--variant", default="ours")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rates = json.loads(RATES.read_text(encoding="utf-8"))
    device = rates["training"]["device"]
    ours = read(arguments.file, device, arguments.variant)
    if not ours:
        raise SystemExit(f"{arguments.file}: no line of {arguments.variant} on one {device}")
    print(json.dumps(ours, indent=1))
    if arguments.write:
        update(rates["training"], ours)
        RATES.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
