"""Reads what all attempts of a run wrote down, as one history."""

import re
from dataclasses import dataclass, field
from typing import Any

from cluster import storage
from schemas.errors import CheckpointError
from schemas.json_text import parse_json

Record = dict[str, Any]

_FIRST_RANK = re.compile(r"rank-00000(-\d+)?\.jsonl")


@dataclass(frozen=True)
class History:
    """``figures`` has one record for each logged step; of a step made twice, the last attempt counts."""

    figures: list[Record] = field(default_factory=list)
    """By step: losses, accuracies, rates and timing, as rank 0 wrote them."""
    held_out: list[Record] = field(default_factory=list)
    """By step: the events called evaluated."""
    events: list[Record] = field(default_factory=list)
    """By time: everything that happened, of all attempts, as rank 0 wrote it; samples left out."""


def read_history(run_uri: str) -> History:
    """The history of a run. A line that a killed process left unfinished is passed over.

    Raises CheckpointError when the run has no log, or names the line of it that is damaged.
    """
    records: list[tuple[int, Record]] = []
    folder = storage.join(run_uri, "metrics")
    for file in storage.list_files(folder):
        place, _, name = file.uri.rpartition("/")
        attempt = place.rpartition("-")[2]
        # A log of weeks is in several files.
        if not _FIRST_RANK.fullmatch(name) or not attempt.isdigit():
            continue
        # What follows the last newline was not finished.
        for number, line in enumerate(storage.read_bytes(file.uri).split(b"\n")[:-1], start=1):
            records.append((int(attempt), _record(line, f"{file.uri}:{number}")))
    if not records:
        raise CheckpointError(f"{folder}: no log of a run")
    records.sort(key=lambda record: record[0])
    figures: dict[int, Record] = {}
    held_out: dict[int, Record] = {}
    events: list[Record] = []
    for attempt_number, record in records:
        kind = record.get("event")
        if kind is None:
            figures[record["step"]] = record
        elif kind == "evaluated":
            held_out[record["step"]] = record
        elif kind != "samples":
            events.append({"attempt": attempt_number, **record})
    return History(
        [figures[step] for step in sorted(figures)],
        [held_out[step] for step in sorted(held_out)],
        sorted(events, key=lambda event: float(event["time"])),
    )


def _record(line: bytes, place: str) -> Record:
    try:
        record = parse_json(line.decode("utf-8", "replace"))
    except ValueError as error:
        raise CheckpointError(f"{place}: not a line of a log: {error}") from error
    if (
        not isinstance(record, dict)
        or not {"time", "event" if "event" in record else "step"} <= record.keys()
    ):
        raise CheckpointError(f"{place}: not a line of a log")
    return record
