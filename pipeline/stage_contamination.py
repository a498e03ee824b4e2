"""Drops documents that hold text of evaluation sets: a map over documents parts."""

import bz2
import gzip
import hashlib
import io
import logging
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import zstandard

from cluster import storage
from pipeline.commit import PartWriter, StageFolder
from pipeline.dedup.contamination import RUN_SIGNS, RUN_WORDS, contaminated, evaluation_runs
from pipeline.dedup.paragraphs import offsets_of
from pipeline.dedup.shingles import U64, hashed_words
from pipeline.losers import LOSERS, chosen_batches, kept_rows
from pipeline.ray_stage import Row, map_units
from pipeline.skip_reasons import CONTAMINATED
from pipeline.stage_extract import Part
from schemas.arrays import distinct_values
from schemas.errors import ConfigError, InputError
from schemas.json_text import parse_json

logger = logging.getLogger("bertmill")

_OPENERS: dict[str, Any] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": zstandard.open,
}


@dataclass(frozen=True)
class EvaluationRuns:
    """The runs of all evaluation sets, and the hash of them."""

    runs: U64
    digest: str


def evaluation_files(patterns: list[str]) -> list[str]:
    """The files of ``dedup.evaluation``, each once. Raises ConfigError for a pattern without files."""
    found: dict[str, None] = {}
    for pattern in patterns:
        uris = storage.expand_glob(pattern)
        if not uris:
            raise ConfigError(f"dedup.evaluation: {pattern}: no such file")
        found |= dict.fromkeys(uris)
    return list(found)


def load_evaluation(patterns: list[str]) -> EvaluationRuns:
    """The runs of the files. Raises ConfigError for a pattern without files, InputError for a bad file."""
    runs = [np.zeros(0, np.uint64)]
    for uri in evaluation_files(patterns):
        runs.append(evaluation_runs(pa.array(list(evaluation_texts(uri)), pa.large_string())))
        if not len(runs[-1]):
            message = "dedup.evaluation: %s: no text of %d words (%d signs) in it, so nothing is compared"
            logger.warning(message, uri, RUN_WORDS, RUN_SIGNS)
    merged = distinct_values(np.concatenate(runs))
    return EvaluationRuns(merged, hashlib.sha256(merged.tobytes()).hexdigest())


def evaluation_texts(uri: str) -> Iterator[str]:
    """The texts of a file: the strings of JSON, the fields of TSV, else the lines, one after another.

    Lines without a tab are one text as long as they follow each other: it may be wrapped at any width.
    """
    suffix = next((suffix for suffix in _OPENERS if uri.lower().endswith(suffix)), "")
    with storage.open_stream(uri) as raw:
        stream = _OPENERS[suffix](raw) if suffix else raw
        try:
            yield from _texts(io.TextIOWrapper(stream, encoding="utf-8"), uri.lower().removesuffix(suffix))
        except (ValueError, RecursionError, OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
            raise InputError(f"{uri}: not a readable evaluation file: {error}") from error


def _texts(lines: io.TextIOWrapper, name: str) -> Iterator[str]:
    if name.endswith(".json"):
        yield from _strings(parse_json(lines.read()))
    elif name.endswith((".jsonl", ".ndjson")):
        for line in lines:
            if line.strip():
                yield from _strings(parse_json(line))
    else:
        for has_fields, some in groupby(lines, lambda line: "\t" in line):
            if has_fields:
                yield from (field for line in some for field in line.split("\t"))
            else:
                yield "".join(some)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.encode("utf-8", "replace").decode()
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)


def run_contamination(
    work_uri: str, inputs: list[str], parts: list[Part], gone: pa.Table, evaluation: EvaluationRuns
) -> pa.Table:
    """LOSERS of the documents that share a run with an evaluation set."""
    folder = StageFolder.create(work_uri, "dedup-evaluation", *inputs)
    done = folder.finished()
    shared, kept = ray.put(evaluation.runs), ray.put(gone)

    def work(row: Row) -> Row:
        part = Part(**row)
        found = _contaminated_rows(part, ray.get(kept), ray.get(shared))
        name = f"{_unit_id(part)}.parquet"
        with PartWriter(LOSERS, folder.path(name), name) as writer:
            writer.write(found)
            folder.commit(_unit_id(part), [writer.finish()], {})
        return {"documents": found.num_rows}

    for _ in map_units([vars(part) for part in parts if _unit_id(part) not in done], work):
        pass
    tables = [storage.parquet_file(folder.path(f"{_unit_id(part)}.parquet")).read() for part in parts]
    return pa.concat_tables([LOSERS.empty_table(), *(table.cast(LOSERS) for table in tables)])


def _unit_id(part: Part) -> str:
    return f"part-{part.ordinal:06d}"


def _contaminated_rows(part: Part, gone: pa.Table, runs: U64) -> pa.Table:
    found = [LOSERS.empty_table()]
    for rows, table in chosen_batches(part, kept_rows(gone, part), ["key", "lang", "sentences"]):
        sentences = table["sentences"].combine_chunks()
        hit = np.flatnonzero(contaminated(hashed_words(sentences.flatten(), offsets_of(sentences)), runs))
        chosen = table.take(pa.array(hit))
        columns = {
            "part": pa.array(np.full(len(hit), part.ordinal), pa.int32()),
            "row": pa.array(rows[hit], pa.int32()),
            "lang": chosen["lang"],
            "reason": pa.array([CONTAMINATED] * len(hit), pa.string()),
            "key": chosen["key"],
            # No document stays in its place.
            "kept_key": pa.array([""] * len(hit), pa.string()),
        }
        found.append(pa.table(columns, schema=LOSERS))
    return pa.concat_tables(found)
