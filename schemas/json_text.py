"""Parses JSON that other programs may have written. Every problem is a ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes, *, constants: bool = True) -> Any:
    """The value in ``text``. Raises ValueError, also for nesting too deep for Python.

    Without ``constants`` it refuses NaN and Infinity, which Python writes but JSON does not allow.
    """
    try:
        return json.loads(text, parse_constant=None if constants else _refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
