"""Adds up counts that dataclasses hold."""

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Tally = TypeVar("Tally", bound="DataclassInstance")


def add_fields(total: Tally, more: Tally) -> None:
    """Adds every field of ``more`` to the same field of ``total``, an instance of the same dataclass.

    Numbers are summed, lists element by element, and dictionaries of numbers by key. A field whose value has
    an ``add`` method is added with that method.
    """
    for item in fields(total):
        current, added = getattr(total, item.name), getattr(more, item.name)
        if hasattr(current, "add"):
            current.add(added)
        else:
            setattr(total, item.name, _sum(current, added))


def _sum(current: Any, added: Any) -> Any:
    if isinstance(current, Counter):
        current.update(added)
        return current
    if isinstance(current, dict):
        return current | {name: current.get(name, 0) + amount for name, amount in added.items()}
    if isinstance(current, list):
        return [a + b for a, b in zip(current, added, strict=True)]
    return current + added
