"""Marks that follow from the fixtures of a test and the names that its code reaches.

A test reaches the names in its own code, and those in the functions, classes and fixtures of the package
``tests`` that it reaches. Marks are therefore never written manually, and none can be forgotten.
"""

import subprocess
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

FIXTURES = {"ray_session": "ray", "s3_process": "s3", "gs_process": "gs"}
# Names that start processes, of the standard library, of the product or of its tests.
_PROCESSES = {
    "Popen",
    "fork",
    "ProcessPoolExecutor",
    "active_children",
    "get_context",
    "spawn",
    "DataLoader",
    "TerraformCommand",
    "MlflowClient",
    "open_trackers",
    "by_two_processes",
    "map_in_processes",
    "measure_together",
}
WITH_PROCESSES = (*FIXTURES.values(), "process")
_NUMERIC_NAMES = {"approx", "isclose", "allclose", "assert_close", "assert_allclose"}
_NUMERIC_PACKAGES = tuple(
    f"trainer.{name}"
    for name in ("evaluation", "export", "finetuning", "kernels", "model", "optim", "run", "startup")
)


def marks_of(item: pytest.Item) -> set[str]:
    """The names of the marks that ``item`` gets: ray, s3, gs, process, numeric."""
    fixtures = set(getattr(item, "fixturenames", ()))
    marks = {mark for fixture, mark in FIXTURES.items() if fixture in fixtures}
    callspec = getattr(item, "callspec", None)
    # A storage that a parameter names: the test requests its fixture while it runs.
    marks |= {str(value) for value in (callspec.params.values() if callspec else ()) if value in ("s3", "gs")}
    functions = [getattr(item, "function", None)]
    info = getattr(item, "_fixtureinfo", None)
    if info is not None:
        functions += [definition.func for group in info.name2fixturedefs.values() for definition in group]
    return marks.union(*(_marks_of_code(function) for function in functions))


@cache
def _marks_of_code(function: Callable[..., Any] | None) -> frozenset[str]:
    """The marks that follow from the names which ``function`` reaches. Many tests share their fixtures."""
    marks = set()
    for name, value in _reached(function):
        if name in _PROCESSES or value is subprocess:
            marks.add("process")
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if name in _NUMERIC_NAMES or module == "torch" or str(module).startswith(_NUMERIC_PACKAGES):
            marks.add("numeric")
    return frozenset(marks)


def _reached(start: Callable[..., Any] | None) -> Iterator[tuple[str, Any]]:
    """(name, its object or None) of all names in the code that ``start`` reaches."""
    waiting: list[Any] = [start]
    known: set[int] = set()
    while waiting:
        function = getattr(waiting[-1], "__wrapped__", waiting.pop())
        if id(function) in known:
            continue
        known.add(id(function))
        for name, value in _named_by(function):
            yield name, value
            # A table of checks by name, or a class, reaches the functions in it.
            for part in value.values() if isinstance(value, dict) else (value,):
                if str(getattr(part, "__module__", "")).startswith("tests."):
                    waiting += vars(part).values() if isinstance(part, type) else [part]


def _named_by(function: Any) -> Iterator[tuple[str, Any]]:
    inner = function.__func__ if isinstance(function, classmethod | staticmethod) else function
    inner = inner.fget if isinstance(inner, property) else inner
    if not isinstance(inner, types.FunctionType):
        return
    codes = [inner.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in code.co_names:
            value = inner.__globals__.get(name)
            yield name, value
            # ``builds.run``: the attributes of a module of the tests.
            if isinstance(value, types.ModuleType) and value.__name__.startswith("tests."):
                yield from ((part, getattr(value, part)) for part in code.co_names if hasattr(value, part))
