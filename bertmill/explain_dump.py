"""``bertmill explain dump FILE...``: which pages of dump files are kept, before any cleaning."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.config import Extraction
from pipeline.dedup.exact import page_losers
from pipeline.skip_reasons import DUPLICATE
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.wikimedia import plan_dump, read_dump
from schemas.errors import InputError


def explain(files: list[str]) -> dict[str, Any]:
    """Pages seen, pages kept (id, title) and pages skipped by reason, over all files together.

    Raises InputError that names the file when one is missing, damaged, cut or no dump.
    """
    kept: list[RawDocument] = []
    skipped: Counter[str] = Counter()
    for uri in files:
        for page in _pages(uri):
            if isinstance(page, Skip):
                skipped[page.reason] += 1
            else:
                kept.append(replace(page, body=""))
    seen = len(kept) + skipped.total()
    losers = _older(kept)
    if losers:
        skipped[DUPLICATE] += len(losers)
    pages = [
        {"id": int(page.page_id), "title": page.title}
        for number, page in enumerate(kept)
        if number not in losers
    ]
    return {"pages_seen": seen, "kept": pages, "skipped": dict(sorted(skipped.items()))}


def _pages(uri: str) -> Iterator[RawDocument | Skip]:
    settings = Extraction()
    try:
        units = plan_dump(source="dump", uri=uri, name=uri, unit_bytes=settings.unit_bytes)
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    for unit in units:
        yield from read_dump(unit, settings.max_page_chars)


def _older(pages: list[RawDocument]) -> set[int]:
    """Places in ``pages`` of those that are there in a higher revision too, or twice."""
    table = pa.table(
        {
            "key": [f"dump/{page.lang}/{page.page_id}/{page.revision}" for page in pages],
            "source": ["dump"] * len(pages),
            "lang": [page.lang for page in pages],
            "page_id": [page.page_id for page in pages],
            "revision": pa.array([page.revision for page in pages], pa.int64()),
            "row": pa.array(range(len(pages)), pa.int64()),
        }
    )
    return set(page_losers(table)["row"].to_pylist())
