"""``bertmill demo-summary``: where the demo left its results, and a few masks filled by its model."""

import argparse
from pathlib import Path

# In languages and scripts that the bundled sample has much of.
SENTENCES = (
    "Alice was not a bit [MASK] , and she jumped up .",
    "The city is the capital of [MASK] .",
    "Latgola ir [MASK] Latvejis sastuovdaļa .",
    "De [MASK] is een stad in Nederland .",
    "Она [MASK] на меня и молчала .",
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``demo-summary`` to the console command."""
    parser = commands.add_parser("demo-summary", help="what `make demo` made, and where it is")
    parser.add_argument("folder", metavar="FOLDER", help="the demo's folder")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the places, then each sentence with the likeliest words for its mask."""
    from bertmill.models import fill_masks

    folder = Path(arguments.folder).absolute()
    model = folder / "model"
    places = {
        "report": folder / "corpus" / "report.html",
        "shards": folder / "corpus" / "data",
        "manifest": folder / "corpus" / "manifest.json",
        "run": folder / "bert-demo",
        "model": model,
    }
    lines = ["", *(f"{name:<10}{path}" for name, path in places.items()), "", "filled masks:"]
    for sentence, masks in zip(SENTENCES, fill_masks(str(model), SENTENCES, top=4), strict=True):
        answers = ", ".join(f"{piece} {chance:.2f}" for piece, chance in masks[0])
        lines.append(f"  {sentence:<52} {answers}")
    print("\n".join(lines))
    return 0
