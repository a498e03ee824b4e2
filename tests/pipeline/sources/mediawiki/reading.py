"""Plans and reads dumps in one call, for tests."""

from pathlib import Path
from typing import Any

from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import plan_dump, read_dump
from pipeline.sources.units import Unit

LIMIT = 4_000_000


def plan(path: Path, **options: Any) -> list[Unit]:
    return plan_dump(source="wiki", uri=str(path), name=path.name, **options)


def read_pages(path: Path, **options: Any) -> list[RawDocument | Skip]:
    return [item for unit in plan(path, **options) for item in read_dump(unit, LIMIT)]


def kept_pages(path: Path, **options: Any) -> list[RawDocument]:
    return [item for item in read_pages(path, **options) if isinstance(item, RawDocument)]


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
