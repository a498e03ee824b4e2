"""Adding up counts that are kept in dataclasses."""

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Tally = TypeVar("Tally", bound="DataclassInstance")


def add_fields(total: Tally, more: Tally) -> None:
    """Adds every field of ``more`` to that of ``total``, both of one dataclass.

    Numbers are summed, lists element by element, dictionaries of numbers by key; what has an ``add`` of its
    own is asked to.
    """
    for item in fields(total):
        mine, theirs = getattr(total, item.name), getattr(more, item.name)
        if hasattr(mine, "add"):
            mine.add(theirs)
        else:
            setattr(total, item.name, _sum(mine, theirs))


def _sum(mine: Any, theirs: Any) -> Any:
    if isinstance(mine, Counter):
        mine.update(theirs)
        return mine
    if isinstance(mine, dict):
        return mine | {name: mine.get(name, 0) + amount for name, amount in theirs.items()}
    if isinstance(mine, list):
        return [a + b for a, b in zip(mine, theirs, strict=True)]
    return mine + theirs
