"""MANIFEST.json of a checkpoint as typed classes: its files, its step, and the state of the run.

This module does not import torch, so that commands that only list checkpoints start quickly.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from schemas.errors import CheckpointError, reason_of
from schemas.json_text import parse_json

FORMAT = 2
MANIFEST = "MANIFEST.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.pt"
EMA = "ema.safetensors"
VOCABULARY_FILES = ("vocab.txt", "pieces.txt")
"""A checkpoint has one of them, depending on the origin of the corpus's tokenizer."""
TOKENIZER_FILES = (*VOCABULARY_FILES, "tokenizer.json", "tokenizer_config.json")
"""Copied from the corpus, so that a checkpoint can be exported and fine-tuned without it."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a plain name")
    return name


Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, AfterValidator(_plain_name)]


class _Header(BaseModel):
    """A part of the manifest. A missing, unknown or mistyped field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FileEntry(_Header):
    """One file of a checkpoint."""

    size: Count
    """Bytes."""
    sha256: str


class DataSkip(_Header):
    """Data that a rewind leaves out: from ``step`` on, steps train the batches planned ``batches`` later."""

    step: Count
    batches: Count


class Trend(_Header):
    """How the losses developed, which decides what is kept and whether to raise an alarm."""

    phase: Count = 0
    """The losses below are those of this phase."""
    recent: list[float] = []
    """Training losses of the last lines of the log."""
    lowest: float | None = None
    """The lowest mean of the same number of lines."""
    lowest_step: Count = 0
    good_step: Count | None = None
    """The last checkpoint before the loss began to rise."""
    best_held_out: float | None = None
    best_step: Count | None = None
    """Step of the lowest held-out loss."""
    worse: Count = 0
    """Held-out measurements in a row that were clearly worse than the best."""


class MicroBatchLimit(_Header):
    """Micro-batches of a phase that were halved because memory ran out."""

    phase: Count
    configured: Count
    """The phase's micro_batch_tokens. With another value in the config, the limit does not hold."""
    tokens: Count
    """Most tokens in a micro-batch."""


class Position(_Header):
    """The progress of a run. Data order and learning rate are functions of ``step`` alone."""

    step: Count = 0
    """Optimizer steps done."""
    tokens: Count = 0
    """Real tokens trained on, over all ranks."""
    first_loss: float | None = None
    last_loss: float | None = None
    skips: list[DataSkip] = []
    """Data left out by rewinds."""
    trend: Trend = Trend()
    micro_batches: list[MicroBatchLimit] = []


class SpikeGuardState(_Header):
    """The state of trainer/optim/spike_guard.py. JSON keeps every bit of a float."""

    norms: list[float] = []
    """The gradient norms of the last steps, a ring buffer."""
    seen: Count = 0
    """Norms recorded since the buffer was cleared."""
    skipped: Count = 0
    """Steps skipped since step 0."""
    consecutive_skips: Count = 0
    """Steps skipped since the last step that counted."""


class CorpusReference(_Header):
    """The corpus manifest that a run trains on."""

    uri: str
    sha256: str
    vocabulary_sha256: str | None = None
    """SHA-256 of its vocab.txt, or None in checkpoints of older versions."""
    languages: list[str] = []


class RunState(_Header):
    """What a run needs to resume, except tensors, and the config of its model."""

    position: Position
    spike_guard: SpikeGuardState
    identity: dict[str, JsonValue]
    """Dotted config field -> value, of every field that decides what the run computes."""
    config: dict[str, JsonValue]
    """The whole config of the run."""
    model: dict[str, JsonValue]
    """The model's config, with the vocabulary size of the corpus."""
    corpus: CorpusReference


class Manifest(_Header):
    """The content of MANIFEST.json."""

    format: int = FORMAT
    step: Count
    attempt: Count
    created: Count
    """Seconds since 1970."""
    code_version: str | None = None
    """Version of the bertmill that wrote it, or None in checkpoints of older versions."""
    files: dict[FileName, FileEntry]
    run: RunState

    def to_bytes(self) -> bytes:
        """JSON that includes the SHA-256 of the rest, so that a reader detects any change."""
        body = self.model_dump(mode="json")
        return json.dumps({**body, "sha256": _digest(body)}, sort_keys=True, indent=1).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, uri: str) -> Self:
        """The manifest in ``raw``. Raises CheckpointError that names ``uri`` and the field at fault."""
        try:
            body = parse_json(raw)
            digest, version = body.pop("sha256"), body["format"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{uri}: not a checkpoint manifest") from error
        if version != FORMAT:
            raise CheckpointError(
                f"{uri}: checkpoint format {version!r}, but this version of bertmill reads format {FORMAT};"
                " resume with the version that wrote it, or start a new run"
            )
        if digest != _digest(body):
            raise CheckpointError(f"{uri}: the manifest is damaged (its own sha256 differs)")
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"] if part != "[key]")
            raise CheckpointError(f"{uri}: not a checkpoint manifest: {field}: {reason_of(first)}") from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
