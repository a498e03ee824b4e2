"""Opens the earlier build that ``previous`` names, and decides what to reuse."""

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.documents.reuse.hashed_file import HashedFile
from pipeline.documents.reuse.previous_pages import PreviousPages, PreviousPart
from pipeline.documents.reuse.rules_version import cleaning_record, signature_record
from pipeline.engine.build_identity import differences
from pipeline.engine.commit import StageFolder
from pipeline.stages.extract import UnitCounts
from pipeline.stages.signatures import PreviousSignatures, SignatureCounts, SignatureStage
from schemas.errors import BertmillError, ConfigError, CorpusError, reason_of
from schemas.manifest import MANIFEST_NAME
from schemas.redaction import public_uri

_FILE = "work/pages.json"
_SIGNATURES_FILE = "work/signatures.json"
_VERSION = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pointer:
    """Names the folder of a build's documents and their indexes, and what their texts depend on."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    version: int
    folder: str
    stage_hash: str
    cleaning: dict[str, Any]


@dataclass(frozen=True)
class _SignaturePointer:
    """Names the folder of a build's band hashes, and what they depend on."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    version: int
    folder: str
    stage_hash: str
    rules: dict[str, Any]


_AnyPointer = TypeVar("_AnyPointer", _Pointer, _SignaturePointer)


def publish_pages(config: BuildConfig, folder: StageFolder[UnitCounts]) -> None:
    """Writes the pointer to this build's pages for later builds. A second run changes no file."""
    name = folder.uri.rpartition("/")[2]
    pointer = _Pointer(_VERSION, f"work/{name}", folder.stage_hash, cleaning_record(config))
    _write_pointer(storage.join(config.output, _FILE), pointer)


def _write_pointer(uri: str, pointer: "_Pointer | _SignaturePointer") -> None:
    raw = json.dumps(asdict(pointer), sort_keys=True, ensure_ascii=False, indent=1).encode()
    if not storage.exists(uri) or storage.read_bytes(uri) != raw:
        storage.put_bytes(uri, raw)


def publish_signatures(config: BuildConfig, stage: SignatureStage) -> None:
    """Writes the pointer to this build's band hashes for later builds. A second run changes no file."""
    name = stage.folder.uri.rpartition("/")[2]
    record = signature_record(stage.threshold)
    pointer = _SignaturePointer(_VERSION, f"work/{name}", stage.folder.stage_hash, record)
    _write_pointer(storage.join(config.output, _SIGNATURES_FILE), pointer)


def open_signatures(config: BuildConfig, pages: PreviousPages | None) -> PreviousSignatures | None:
    """The band hashes of the build that ``previous`` names and whose pages are ``pages``.

    None if there is nothing to reuse. Raises CorpusError if the build cannot be read.
    """
    if config.previous is None or pages is None or not config.dedup.near:
        return None
    public = public_uri(config.previous)
    uri = storage.join(config.previous, _SIGNATURES_FILE)
    if not storage.exists(uri):
        logger.warning("previous: cannot reuse signatures of %s: it has no %s", public, _SIGNATURES_FILE)
        return None
    pointer = _parse_pointer(uri, _SignaturePointer)
    changed = ["the version"] if pointer.version != _VERSION else []
    changed += differences(pointer.rules, signature_record(config.dedup.jaccard))
    if changed:
        message = "previous: cannot reuse signatures of %s: it differs in %s"
        logger.warning(message, public, ", ".join(changed))
        return None
    folder = storage.join(config.previous, pointer.folder)
    return PreviousSignatures(StageFolder(folder, pointer.stage_hash, SignatureCounts), pages)


def open_previous(config: BuildConfig) -> PreviousPages | None:
    """The pages of the build that ``previous`` names. None without one, or if there is nothing to reuse.

    Raises ConfigError if no such finished build exists, and CorpusError if it cannot be read.
    """
    if config.previous is None:
        return None
    public = public_uri(config.previous)
    if config.previous.rstrip("/") == config.output.rstrip("/"):
        raise ConfigError(
            f"previous: {public}: is the output of this build; name the corpus of another build"
        )
    if storage.scheme(config.previous) in ("http", "https"):
        raise ConfigError(
            f"previous: {public}: a web server cannot list folders; copy the corpus to a folder or a bucket"
        )
    pointer = _read_pointer(config.previous, public)
    changed = _changes(pointer, config)
    if changed:
        logger.warning("previous: cannot reuse %s: it differs in %s", public, ", ".join(changed))
        return None
    pages = PreviousPages(_parts(config.previous, pointer, public))
    logger.info("previous: reusing unchanged pages of %s", public)
    return pages


def _read_pointer(previous: str, public: str) -> _Pointer:
    """Raises ConfigError if the build is missing, unfinished or without index, CorpusError if damaged."""
    if not storage.exists(storage.join(previous, MANIFEST_NAME)):
        reason = "an unfinished build" if storage.list_files(storage.join(previous, "work")) else "no build"
        raise ConfigError(
            f"previous: {public}: {reason} (no {MANIFEST_NAME}); name the folder of a finished build, "
            "or remove `previous`"
        )
    uri = storage.join(previous, _FILE)
    try:
        return _parse_pointer(uri, _Pointer)
    except FileNotFoundError:
        raise ConfigError(
            f"previous: {public}: has no {_FILE}: its work folder was removed, or an older version of "
            "bertmill built it; remove `previous`"
        ) from None


def _parse_pointer(uri: str, kind: type[_AnyPointer]) -> _AnyPointer:
    """Raises CorpusError when the file is damaged."""
    try:
        return TypeAdapter(kind).validate_json(storage.read_bytes(uri))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise CorpusError(f"previous: {public_uri(uri)}: damaged, or of another version: {field}: "
                          f"{reason_of(first)}; remove `previous`") from error  # fmt: skip


def _changes(pointer: _Pointer, config: BuildConfig) -> list[str]:
    """The names of the differences between what the texts of both builds depend on."""
    if pointer.version != _VERSION:
        return ["the version of the page index"]
    return differences(pointer.cleaning, cleaning_record(config))


def _parts(previous: str, pointer: _Pointer, public: str) -> list[PreviousPart]:
    folder = StageFolder(storage.join(previous, pointer.folder), pointer.stage_hash, UnitCounts)
    try:
        parts = previous_parts(folder)
    except BertmillError as error:
        raise CorpusError(f"previous: {error}; remove `previous`") from error
    if not parts and not storage.list_files(folder.uri):
        raise CorpusError(
            f"previous: {public}: its folder {pointer.folder} was removed; restore it, or remove `previous`"
        )
    return parts


def previous_parts(folder: StageFolder[UnitCounts]) -> list[PreviousPart]:
    """The parts of a finished stage extract that have an index."""
    return [
        PreviousPart(
            marker.unit_id,
            HashedFile(folder.path(marker.files[0].path), marker.files[0].sha256),
            HashedFile(folder.path(marker.files[1].path), marker.files[1].sha256),
            tuple(marker.counts.pages),
        )
        for marker in folder.finished().values()
        if len(marker.files) > 1
    ]
