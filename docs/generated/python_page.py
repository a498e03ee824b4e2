"""The reference page of the Python API, from the signatures and docstrings of the public names."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import bertmill

_EXAMPLE = re.compile(r"(?:^>>> [^\n]*\n(?:(?!\n)[^\n]+\n)*)+", re.M)
_WIDTH = 90


def page() -> str:
    """The Markdown of the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Python API", "", _text(bertmill.__doc__), "")
    for name in bertmill.__all__:
        yield from _entry(getattr(bertmill, name), name, 2)


def _entry(value: Any, name: str, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "", "```python", _signature(value, name), "```", "")
    yield from (_text(inspect.getdoc(value)), "")
    if not inspect.isclass(value):
        return
    for method, function in vars(value).items():
        if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield from _entry(function, f"{name}.{method}", level + 1)


def _signature(value: Any, name: str) -> str:
    """The signature on one line, or with a parameter on each line when it is long."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"class {name}({value.__base__.__name__})"
    signature, prefix = inspect.signature(value), ""
    if inspect.isclass(value):
        signature, prefix = signature.replace(return_annotation=signature.empty), "class "
    line = f"{prefix}{name}{signature}"
    if len(line) <= _WIDTH:
        return line
    parameters = "".join(f"    {parameter},\n" for parameter in _parameters(signature))
    result = "" if signature.return_annotation is signature.empty else str(signature).rpartition(")")[2]
    return f"{prefix}{name}(\n{parameters}){result}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield str(parameter)


def _text(docstring: str | None) -> str:
    """A docstring as Markdown: interpreter examples become code blocks."""
    text = inspect.cleandoc(docstring or "") + "\n"
    text = text.replace("  # doctest: +SKIP", "")
    return _EXAMPLE.sub(lambda match: f"```python\n{match[0]}```\n", text).strip()
