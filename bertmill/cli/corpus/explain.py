"""``bertmill explain AREA``: runs one transform on JSON lines, to show what it does.

A refused line gives ``{"id": ..., "error": ...}`` and does not stop the others.
"""

import argparse
import io
import json
import sys
from typing import TYPE_CHECKING, Any

from bertmill.cli.argument_types import Commands
from schemas.errors import BertmillError, InputError
from schemas.json_text import parse_json

if TYPE_CHECKING:
    from bertmill.explain import Explainer, Record

# Functions of bertmill.explain that map a record to an answer.
LINE_AREAS = ("wikitext", "normalize", "sentences", "tokens", "instances")


def add_parser(commands: Commands) -> None:
    """Adds ``explain`` to the console command."""
    parser = commands.add_parser(
        "explain",
        help="show what one transform does to a text",
        description="Runs one transform on JSON lines from stdin and prints JSON lines. "
        "Area `model` runs a model on lines with id, input_ids and, optionally, segment_ids, and prints "
        "mlm_argmax, mlm_logits (the first eight of each position) and nsp_logits. A model without an MLM "
        "head gives hidden instead, the first eight numbers of each last hidden state. "
        "Area `dump` reads files instead and prints which pages are kept and which are skipped.",
    )
    parser.add_argument("area", choices=[*LINE_AREAS, "model", "dump"], help="the transform to run")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="dump files (area dump), or the model: a Hugging Face directory, run or checkpoint (area model)",
    )
    parser.add_argument("--vocab", metavar="FILE", help="the vocabulary, a vocab.txt (area tokens only)")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints an answer for each line. Raises BertmillError when the whole call is wrong."""
    if arguments.area == "dump":
        return _run_dump(arguments.files)
    if arguments.area == "model":
        explainer = model_explainer(arguments.files)
    elif arguments.files:
        raise InputError(f"explain {arguments.area}: reads stdin; remove the FILE arguments")
    else:
        explainer = line_explainer(arguments.area, arguments.vocab)
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogatepass")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            print(json.dumps(answer(explainer, line, number)), flush=True)
    return 0


def line_explainer(area: str, vocab: str | None = None) -> "Explainer":
    """The function that answers one record of ``area``. Raises InputError when --vocab is missing."""
    # Imported late, so that the other commands do not wait for the pipeline.
    from bertmill import explain

    if area == "tokens":
        if vocab is None:
            raise InputError("explain tokens: --vocab FILE is missing")
        return explain.tokens(vocab)
    explainer: Explainer = getattr(explain, area)
    return explainer


def model_explainer(folders: list[str]) -> "Explainer":
    """The function that answers with the logits of a model. Raises InputError without exactly one folder."""
    if len(folders) != 1:
        raise InputError("explain model: exactly one model is needed, as in bertmill explain model DIR")
    from bertmill.explain_model import model

    return model(folders[0])


def answer(explainer: "Explainer", line: str, number: int) -> "Record":
    """The answer to line ``number``: the fields of the explainer and ``id``, or ``id`` and ``error``."""
    try:
        record = parse_json(line)
    except ValueError as error:
        return {"id": None, "error": f"line {number}: not JSON: {error}"}
    if not isinstance(record, dict):
        return {"id": None, "error": f"line {number}: not a JSON object"}
    try:
        _check_fields(record)
        return {"id": record.get("id"), **explainer(record)}
    except BertmillError as error:
        return {"id": record.get("id"), "error": str(error)}
    except KeyError as error:
        return {"id": record.get("id"), "error": f"line {number}: field {error} is missing"}


# The types of the fields that several areas share. Area instances checks its own fields.
_FIELDS: dict[str, type] = {
    "text": str,
    "wikitext": str,
    "lang": str,
    "namespaces": dict,
    "documents": list,
    "langs": list,
}
_NULLABLE = ("namespaces", "langs")


def _check_fields(record: dict[str, Any]) -> None:
    for name in _FIELDS.keys() & record.keys():
        value, kind = record[name], _FIELDS[name]
        if not isinstance(value, kind) and not (value is None and name in _NULLABLE):
            raise InputError(f"{name}: not a {kind.__name__}: {value!r:.60}")


def _run_dump(files: list[str]) -> int:
    if not files:
        raise InputError("explain dump: at least one FILE is needed")
    from bertmill.explain import dump

    print(json.dumps(dump(files), ensure_ascii=False))
    return 0
