"""``bertmill fill``: an exported model's predictions for the [MASK]s of a text."""

import argparse

from bertmill.cli.argument_types import Commands, positive


def add_parser(commands: Commands) -> None:
    """Adds ``fill`` to the console command."""
    parser = commands.add_parser("fill", help="predict the [MASK]s of a text with an exported model")
    parser.add_argument("model", metavar="MODEL", help="Hugging Face directory")
    parser.add_argument(
        "text", nargs="+", metavar="TEXT", help="text that contains [MASK] or the tokenizer's own mask token"
    )
    parser.add_argument(
        "--top", type=positive, default=3, metavar="N", help="predictions for each mask (default: 3)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints each text with its predictions."""
    from bertmill.fill_masks import fill_masks

    predictions = fill_masks(arguments.model, arguments.text, arguments.top)
    for text, masks in zip(arguments.text, predictions, strict=True):
        print(text)
        for number, tokens in enumerate(masks, start=1):
            answers = "  ".join(f"{token} {probability:.3f}" for token, probability in tokens)
            print(f"  mask {number}: {answers}")
    return 0
