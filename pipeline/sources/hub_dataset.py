"""Reads rows of a dataset that the library ``datasets`` streams, from the Hugging Face Hub or a local folder.

The address is ``datasets://wikimedia/wikipedia?name=20231101.ltg&split=train&revision=COMMIT``, or an
absolute path, ``datasets:///data/wikipedia?name=20231101.ltg``. A unit is a shard of the dataset (one of its
files). Give a revision, so that later builds read the same rows.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from pipeline.config import Source
from pipeline.sources.rows import Row, check_values
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, InputError

PREFIX = "datasets://"
_OPTIONS = {"name": None, "split": "train", "revision": None}


def is_dataset(path: str) -> bool:
    """Whether a path of a source is the address of a dataset."""
    return path.startswith(PREFIX)


def plan_dataset(source: Source, path: str, lang: str) -> list[Unit]:
    """A unit for every shard. Raises InputError when the dataset cannot be loaded, ConfigError for a bad
    address.
    """
    shards = _open(path).num_shards
    return [
        Unit(
            source=source.name,
            kind=source.kind,
            uri=path,
            name=f"{path.removeprefix(PREFIX)}#{shard}",
            start=shard,
            end=shard + 1,
            size=shards,
            lang=lang,
            form="rows-dataset",
            text_field=source.text_field,
        )
        for shard in range(shards)
    ]


def read_dataset_rows(unit: Unit) -> Iterator[Row]:
    """The rows of a unit's shard in order."""
    shard = _open(unit.uri).shard(num_shards=unit.size, index=unit.start)
    try:
        for place, values in enumerate(shard):
            check_values(values, f"{unit.name}: row {place}", unit)
            yield Row(place, values, owned=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{unit.name}: cannot be read: {_one_line(error)}") from error


def _open(path: str) -> Any:
    # Loading the library takes seconds, and only this source needs it.
    from datasets import load_dataset

    address, _, query = path.removeprefix(PREFIX).partition("?")
    options = dict(_OPTIONS) | dict(parse_qsl(query, keep_blank_values=True))
    if not address or set(options) != set(_OPTIONS):
        raise ConfigError(f"{path}: expected {PREFIX}REPOSITORY?name=NAME&split=SPLIT&revision=COMMIT")
    try:
        return load_dataset(unquote(address), streaming=True, **options)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be loaded: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
