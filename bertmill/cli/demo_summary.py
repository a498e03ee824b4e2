"""``bertmill demo-summary``: where the results of the demo are, and its model's answers to a few masks."""

import argparse
from pathlib import Path

from bertmill.cli.argument_types import Commands

# Languages and scripts that are frequent in the bundled sample.
SENTENCES = (
    "Alice was not a bit [MASK] , and she jumped up .",
    "The city is the capital of [MASK] .",
    "Latgola ir [MASK] Latvejis sastuovdaļa .",
    "De [MASK] is een stad in Nederland .",
    "Она [MASK] на меня и молчала .",
)


def add_parser(commands: Commands) -> None:
    """Adds ``demo-summary`` to the console command."""
    parser = commands.add_parser("demo-summary", help="show the results of `make demo`")
    parser.add_argument("folder", metavar="FOLDER", help="folder of the demo")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the paths, then each sentence with the likeliest words for its mask."""
    from bertmill.fill_masks import fill_masks

    folder = Path(arguments.folder).absolute()
    model = folder / "model"
    paths = {
        "report": folder / "corpus" / "report.html",
        "shards": folder / "corpus" / "data",
        "manifest": folder / "corpus" / "manifest.json",
        "run": folder / "bert-demo",
        "model": model,
    }
    lines = ["", *(f"{name:<10}{path}" for name, path in paths.items()), "", "filled masks:"]
    for sentence, masks in zip(SENTENCES, fill_masks(str(model), SENTENCES, top=4), strict=True):
        answers = ", ".join(f"{token} {probability:.2f}" for token, probability in masks[0])
        lines.append(f"  {sentence:<52} {answers}")
    print("\n".join(lines))
    return 0
