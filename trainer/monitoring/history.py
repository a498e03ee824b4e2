"""Reads the logs of all attempts of a run as one history."""

import re
from dataclasses import dataclass, field

from pydantic import ValidationError

from cluster import storage
from schemas.errors import CheckpointError, reason_of
from schemas.json_text import parse_json
from trainer.monitoring.records import EVENTS, LOG_VERSION, AnyEvent, Evaluated, Samples, StepRecord

_LOG_OF_RANK_0 = re.compile(r"rank-00000(-\d+)?\.jsonl")


@dataclass(frozen=True)
class History:
    """What rank 0 of all attempts logged. If two attempts did the same step, the later attempt counts."""

    steps: list[StepRecord] = field(default_factory=list)
    """By step."""
    held_out: list[Evaluated] = field(default_factory=list)
    """By step."""
    events: list[AnyEvent] = field(default_factory=list)
    """By time, with their attempt, but without held-out metrics and samples."""


def read_history(run_uri: str) -> History:
    """The history of a run. Ignores a last line that a killed process left unfinished.

    Raises CheckpointError when the run has no log, a line is damaged, or the log has another version.
    """
    records: list[tuple[int, StepRecord | AnyEvent]] = []
    folder = storage.join(run_uri, "metrics")
    for file in storage.list_files(folder):
        attempt_folder, _, name = file.uri.rpartition("/")
        attempt = attempt_folder.rpartition("-")[2]
        # The log of a long run is split into several files.
        if not _LOG_OF_RANK_0.fullmatch(name) or not attempt.isdigit():
            continue
        # The text after the last newline is an unfinished line.
        for number, line in enumerate(storage.read_bytes(file.uri).split(b"\n")[:-1], start=1):
            records.append((int(attempt), _parse(line, f"{file.uri}:{number}", int(attempt))))
    if not records:
        raise CheckpointError(f"{folder}: no training log here; check the URI of the run")
    records.sort(key=lambda record: record[0])
    steps: dict[int, StepRecord] = {}
    held_out: dict[int, Evaluated] = {}
    events: list[AnyEvent] = []
    for _, record in records:
        if isinstance(record, StepRecord):
            steps[record.step] = record
        elif isinstance(record, Evaluated):
            held_out[record.step] = record
        elif not isinstance(record, Samples):
            events.append(record)
    return History(
        [steps[step] for step in sorted(steps)],
        [held_out[step] for step in sorted(held_out)],
        sorted(events, key=lambda event: event.time),
    )


def _parse(line: bytes, place: str, attempt: int) -> StepRecord | AnyEvent:
    try:
        content = parse_json(line.decode("utf-8", "replace"))
    except ValueError as error:
        raise CheckpointError(f"{place}: not a line of a log: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{place}: not a line of a log")
    if content.get("event") == "started" and content.get("log_version") != LOG_VERSION:
        version = content.get("log_version", 1)
        raise CheckpointError(
            f"{place}: log version {version}, but this version of bertmill reads version {LOG_VERSION};"
            " read it with the version that wrote it"
        )
    try:
        if "event" in content:
            return EVENTS.validate_python({**content, "attempt": attempt})
        return StepRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{place}: not a line of a log: {field}: {reason_of(first)}") from error
