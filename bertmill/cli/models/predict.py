"""``bertmill predict``: a fine-tuned model's predictions for a file without labels."""

import argparse
import sys

from bertmill.cli.argument_types import Commands, positive
from cluster import storage


def add_parser(commands: Commands) -> None:
    """Adds ``predict`` to the console command."""
    parser = commands.add_parser(
        "predict",
        help="predict labels, tags or answers for a file without labels",
        description="Reads sentences or pairs from a table, words from CoNLL columns, or questions from "
        "SQuAD JSON, whichever the model was fine-tuned for, and writes a prediction for each in the file's "
        "order.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder that finetune saved, its output folder, or a fine-tuned model of transformers",
    )
    parser.add_argument("file", metavar="FILE", help="file to predict for; labels in it are ignored")
    parser.add_argument("--to", metavar="URI", help="file to write (default: standard output)")
    parser.add_argument(
        "--format",
        choices=("tsv", "jsonl"),
        help="TSV, or JSON Lines (default: by the suffix of --to, otherwise TSV)",
    )
    parser.add_argument(
        "--text", metavar="COLUMN", help="tables: column of the text, by name or number (default: as trained)"
    )
    parser.add_argument(
        "--pair", metavar="COLUMN", help="tables: column of the second text (default: as trained)"
    )
    parser.add_argument(
        "--word",
        metavar="COLUMN",
        help="column of the word by number, or of the list of words in tables by name (default: as trained)",
    )
    parser.add_argument(
        "--max-length", type=positive, metavar="N", help="longest input in tokens (default: as trained)"
    )
    parser.add_argument("--gpu", action="store_true", help="use the first CUDA device, in bf16")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the predictions."""
    # Imported late, so that the other commands do not wait for torch.
    from trainer.finetuning.saved.predict import Predictor, lines_of

    predictor = Predictor(
        arguments.model,
        text=_column(arguments.text),
        pair=_column(arguments.pair),
        word=_column(arguments.word),
        max_length=arguments.max_length,
        use_gpu=arguments.gpu,
    )
    as_json = arguments.format == "jsonl" or (
        arguments.format is None and str(arguments.to or "").endswith((".jsonl", ".json", ".ndjson"))
    )
    lines = lines_of(predictor.predict(arguments.file), "jsonl" if as_json else "tsv")
    if arguments.to is None:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0
    text = "".join(f"{line}\n" for line in lines)
    storage.put_bytes(arguments.to, text.encode())
    print(f"written to {arguments.to}")
    return 0


def _column(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text
