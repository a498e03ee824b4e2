"""``bertmill explain AREA``: one transform on JSON lines, so that a person can see what it does.

An input that is refused gives ``{"id": ..., "error": ...}`` and the next line is taken.
"""

import argparse
import importlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

from schemas.errors import BertmillError, InputError
from schemas.json_text import parse_json

Record = dict[str, Any]
Handler = Callable[[Record], Record]

# Areas that take JSON lines; each has a module bertmill.explain_<area> with explain(record) -> record.
LINE_AREAS = ("wikitext", "normalize", "sentences", "tokens", "instances")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``explain`` to the console command."""
    parser = commands.add_parser(
        "explain",
        help="show what one transform does to a text",
        description="Runs one transform on JSON lines from stdin and prints JSON lines. "
        "Area `dump` takes files instead and prints which pages are kept and which skipped.",
    )
    parser.add_argument("area", choices=[*LINE_AREAS, "dump"])
    parser.add_argument("files", nargs="*", metavar="FILE", help="dump files (area dump only)")
    parser.add_argument("--vocab", metavar="FILE", help="vocab.txt (area tokens only)")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0; expected failures of the whole call are raised as BertmillError."""
    if arguments.area == "dump":
        return _run_dump(arguments.files)
    if arguments.files:
        raise InputError(f"explain {arguments.area}: reads stdin, takes no files")
    handler = line_handler(arguments.area, arguments.vocab)
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogatepass")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            print(json.dumps(_answer(handler, line, number)), flush=True)
    return 0


def line_handler(area: str, vocab: str | None = None) -> Handler:
    """The function that answers one record of ``area``. Raises InputError when --vocab is missing."""
    module = importlib.import_module(f"bertmill.explain_{area}")
    if area != "tokens":
        explain: Handler = module.explain
        return explain
    if vocab is None:
        raise InputError("explain tokens: --vocab FILE is needed")
    with_vocabulary: Callable[[str], Handler] = module.with_vocabulary
    return with_vocabulary(vocab)


def _answer(handler: Handler, line: str, number: int) -> Record:
    try:
        record = parse_json(line)
    except ValueError as error:
        return {"id": None, "error": f"line {number}: not JSON: {error}"}
    if not isinstance(record, dict):
        return {"id": None, "error": f"line {number}: not a JSON object"}
    try:
        _check_fields(record)
        return {"id": record.get("id"), **handler(record)}
    except BertmillError as error:
        return {"id": record.get("id"), "error": str(error)}
    except KeyError as error:
        return {"id": record.get("id"), "error": f"line {number}: field {error} is missing"}


# The areas agree on what a field is; explain_instances checks its own.
_FIELDS: dict[str, type] = {
    "text": str,
    "wikitext": str,
    "lang": str,
    "namespaces": dict,
    "documents": list,
    "langs": list,
}
_MAY_BE_NULL = ("namespaces", "langs")


def _check_fields(record: Record) -> None:
    for name in _FIELDS.keys() & record.keys():
        value, kind = record[name], _FIELDS[name]
        if not isinstance(value, kind) and not (value is None and name in _MAY_BE_NULL):
            raise InputError(f"{name}: not a {kind.__name__}: {value!r:.60}")


def _run_dump(files: list[str]) -> int:
    if not files:
        raise InputError("explain dump: at least one FILE is needed")
    module = importlib.import_module("bertmill.explain_dump")
    print(json.dumps(module.explain(files), ensure_ascii=False))
    return 0
