"""JSON that others wrote: whatever is wrong with it is a ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes, *, constants: bool = True) -> Any:
    """What ``text`` says. Raises ValueError, also for nesting deeper than Python can follow.

    Without ``constants`` NaN and Infinity, which JSON does not know and Python writes, are refused too.
    """
    try:
        return json.loads(text, parse_constant=None if constants else _refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
