"""Reads the evaluation sets that a corpus must not contain."""

import hashlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from cluster import storage
from cluster.compressed import compression_suffix, read_decompressed
from pipeline.dedup.contamination import RUN_SIGNS, RUN_WORDS, evaluation_runs
from schemas.arrays import U64, distinct_values
from schemas.errors import ConfigError, InputError
from schemas.json_text import parse_json
from schemas.redaction import public_uri

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationRuns:
    """The runs of all evaluation sets, and their hash."""

    runs: U64
    digest: str


def evaluation_files(patterns: list[str]) -> list[str]:
    """The files of ``dedup.evaluation``, each once. Raises ConfigError for a pattern without files."""
    files: dict[str, None] = {}
    for pattern in patterns:
        uris = storage.expand_glob(pattern)
        if not uris:
            raise ConfigError(f"dedup.evaluation: {pattern}: no such file")
        files |= dict.fromkeys(uris)
    return list(files)


def load_evaluation(patterns: list[str]) -> EvaluationRuns:
    """The runs of the files. Raises ConfigError for a pattern without files, InputError for a bad file."""
    runs = [np.zeros(0, np.uint64)]
    for uri in evaluation_files(patterns):
        runs.append(evaluation_runs(pa.array(list(evaluation_texts(uri)), pa.large_string())))
        if not len(runs[-1]):
            message = "dedup.evaluation: %s: has no text of %d words (%d characters), so it has no effect"
            logger.warning(message, public_uri(uri), RUN_WORDS, RUN_SIGNS)
    merged = distinct_values(np.concatenate(runs))
    return EvaluationRuns(merged, hashlib.sha256(merged.tobytes()).hexdigest())


def evaluation_texts(uri: str) -> Iterator[str]:
    """The texts of a file: the strings of JSON, the fields of TSV, or runs of lines.

    Consecutive lines without a tab are one text, since text may be wrapped at any width. Raises InputError
    for a file that is damaged, not UTF-8, or too large when decompressed.
    """
    name = public_uri(uri).lower().removesuffix(compression_suffix(uri))
    try:
        yield from _texts(io.TextIOWrapper(io.BytesIO(read_decompressed(uri)), encoding="utf-8"), name)
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{uri}: cannot read the evaluation file: {error}") from error


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
