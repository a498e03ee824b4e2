"""``bertmill export``: a run's newest checkpoint as a Hugging Face directory."""

import argparse

from bertmill.cli.argument_types import Commands, natural


def add_parser(commands: Commands) -> None:
    """Adds ``export`` to the console command."""
    parser = commands.add_parser(
        "export",
        help="write a run's model as a Hugging Face directory",
        description="Writes the newest verified checkpoint of a run as a directory that transformers loads.",
    )
    parser.add_argument("run", metavar="RUN", help="folder or URI of the run")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="folder or URI to write the model to")
    parser.add_argument(
        "--as",
        dest="family",
        choices=["bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "modernbert"],
        metavar="FAMILY",
        help="model_type in transformers: bert, roberta, xlm-roberta, distilbert, albert, electra or"
        " modernbert (default: bert, albert, electra or modernbert, whichever fits)",
    )
    parser.add_argument(
        "--evaluate",
        type=natural,
        default=0,
        metavar="ROWS",
        help="evaluate on this many held-out sequences for the model card (default: 0)",
    )
    parser.add_argument(
        "--ema", action="store_true", help="export the moving average of the weights (config field ema)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Exports the model and prints its step."""
    # Imported late, so that the other commands do not wait for torch.
    from trainer.run.export_run import export_run

    step = export_run(arguments.run, arguments.to, arguments.evaluate, arguments.family, ema=arguments.ema)
    print(f"step {step} exported to {arguments.to}")
    return 0
