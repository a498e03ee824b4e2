"""The corpus manifest: its version, its JSON Schema, and the checked way to read one.

A reader follows the manifest only, never a listing: what it does not name does not exist.
It holds no time, host or path outside the corpus, so that equal builds give equal bytes.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema

from schemas.errors import CorpusError
from schemas.json_text import parse_json
from schemas.vocabulary import SPECIAL_TOKENS

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = "bertmill-corpus"
MANIFEST_VERSION = 1

# Far beyond any corpus, and within the integers of every reader.
_MOST = 1 << 53
_COUNT = {"type": "integer", "minimum": 0, "maximum": _MOST}
_ROW_GROUP = {"type": "integer", "minimum": 1, "maximum": _MOST}
_LONGEST = 1 << 17
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_COUNTS_BY_NAME = {"type": "object", "additionalProperties": _COUNT}
# A path below the manifest's folder; no absolute path and no step upwards.
_PATH = {"type": "string", "pattern": r"^(?!/)(?!.*(^|/)\.\.(/|$))[^\\\x00:]+$"}

SHARD_ENTRY: dict[str, Any] = {
    "type": "object",
    "required": ["path", "rows", "tokens", "bytes", "sha256", "row_groups", "languages"],
    "additionalProperties": False,
    "properties": {
        "path": _PATH,
        "rows": _COUNT,
        "tokens": _COUNT,
        "bytes": _COUNT,
        "sha256": _SHA256,
        "row_groups": {"type": "array", "items": _ROW_GROUP},
        "languages": _COUNTS_BY_NAME,
    },
}

SET_ENTRY = {
    "type": "object",
    "required": ["name", "split", "max_seq_length", "max_predictions", "pass", "rows", "tokens", "shards"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "split": {"enum": ["train", "validation"]},
        "max_seq_length": {"type": "integer", "minimum": 8, "maximum": _LONGEST},
        "max_predictions": {"type": "integer", "minimum": 1, "maximum": _LONGEST},
        "pass": _COUNT,
        "rows": _COUNT,
        "tokens": _COUNT,
        "shards": {"type": "array", "items": SHARD_ENTRY},
    },
}

_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_MASKING = {
    "type": "object",
    "required": ["unit", "probability", "mask_share", "random_share"],
    "properties": {
        "unit": {"enum": ["token", "whole_word", "span", "ngram"]},
        "probability": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "mask_share": _SHARE,
        "random_share": _SHARE,
        "predict_unknown": {"type": "boolean"},
        "words": {
            "type": ["object", "null"],
            "required": ["path", "sha256"],
            "properties": {"path": _PATH, "sha256": _SHA256},
        },
    },
}

# What a build counts of a set; `bertmill verify` counts the first five again.
_SET_NUMBERS = ("rows", "row_tokens", "masked", "masked_by_mask", "masked_unchanged", "tokens_in",
                "tokens_used", "tokens_cut")  # fmt: skip
_SET_GROUPS = ("labels", "left_over", "events")
_SET_COUNTS = {
    "type": "object",
    "required": [*_SET_NUMBERS, *_SET_GROUPS],
    "properties": dict.fromkeys(_SET_NUMBERS, _COUNT) | dict.fromkeys(_SET_GROUPS, _COUNTS_BY_NAME),
}

MANIFEST_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "bertmill corpus manifest",
    "type": "object",
    "required": [
        "format", "version", "objective", "label_convention", "masking", "vocabulary",
        "languages", "sets", "counts", "config", "config_hash", "code_version", "libraries", "sha256",
    ],
    "additionalProperties": False,
    "properties": {
        "format": {"const": MANIFEST_FORMAT},
        "version": {"const": MANIFEST_VERSION},
        "objective": {"enum": ["nsp", "sop", "none"]},
        "label_convention": {"type": "object", "additionalProperties": {"type": "string"}},
        "masking": _MASKING,
        "vocabulary": {
            "type": "object",
            "required": ["path", "size", "sha256", "cased", "special_ids"],
            "additionalProperties": False,
            "properties": {
                "path": _PATH,
                "size": {"type": "integer", "minimum": 6, "maximum": 2_000_000},
                "sha256": _SHA256,
                "cased": {"type": "boolean"},
                "special_ids": {**_COUNTS_BY_NAME, "required": list(SPECIAL_TOKENS)},
            },
        },
        "languages": {"type": "object", "additionalProperties": {"type": "object"}},
        "sets": {"type": "array", "minItems": 1, "items": SET_ENTRY},
        "counts": {
            "type": "object",
            "properties": {"by_set": {"type": "object", "additionalProperties": _SET_COUNTS}},
        },
        "config": {"type": "object"},
        "config_hash": _SHA256,
        "code_version": {"type": "string"},
        "libraries": {"type": "object", "additionalProperties": {"type": "string"}},
        # Of everything else in the manifest: see `seal`.
        "sha256": _SHA256,
    },
}  # fmt: skip


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword ``items``, which leaves out shards and row groups that are seen to be right at a glance.

    A manifest of 10^9 rows has 24,000 shards with 10^6 row groups, and is read at every start.
    """
    if isinstance(instance, list):
        if items == _ROW_GROUP and _are_counts(instance, least=1):
            return
        if items == SHARD_ENTRY and all(map(_is_sound_shard, instance)):
            return
    yield from _STANDARD_ITEMS(validator, items, instance, schema)


def _are_counts(values: Iterable[Any], *, least: int) -> bool:
    return all(type(value) is int and least <= value <= _MOST for value in values)


def _is_sound_shard(entry: Any) -> bool:
    """Whether ``entry`` surely fits SHARD_ENTRY; False says nothing."""
    if type(entry) is not dict or entry.keys() != _SHARD_FIELDS:
        return False
    texts, groups, languages = (entry["path"], entry["sha256"]), entry["row_groups"], entry["languages"]
    return (
        all(type(text) is str for text in texts)
        and _PATH_PATTERN.search(texts[0]) is not None
        and _SHA256_PATTERN.search(texts[1]) is not None
        and _are_counts((entry["rows"], entry["tokens"], entry["bytes"]), least=0)
        and type(groups) is list
        and _are_counts(groups, least=1)
        and type(languages) is dict
        and _are_counts(languages.values(), least=0)
    )


_SHARD_FIELDS = set(SHARD_ENTRY["properties"])
_PATH_PATTERN, _SHA256_PATTERN = re.compile(_PATH["pattern"]), re.compile(_SHA256["pattern"])
_STANDARD_ITEMS = jsonschema.Draft202012Validator.VALIDATORS["items"]
_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]  # of jsonschema
    jsonschema.Draft202012Validator, {"items": _items}
)


def dump_manifest(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes: sealed, checked against the schema, keys sorted, UTF-8, a newline at the end.

    Raises CorpusError when it does not fit the schema.
    """
    sealed = {**manifest, "sha256": seal(manifest)}
    check_manifest(sealed, "manifest to write")
    return _canonical(sealed)


def seal(manifest: dict[str, Any]) -> str:
    """SHA-256 of the manifest's bytes without its field ``sha256``: an edited manifest does not match it."""
    return hashlib.sha256(_canonical({k: v for k, v in manifest.items() if k != "sha256"})).hexdigest()


def _canonical(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, ensure_ascii=False, sort_keys=True, indent=1) + "\n").encode()


def parse_manifest(raw: bytes, origin: str) -> dict[str, Any]:
    """The manifest in ``raw``.

    Raises CorpusError that names ``origin`` and the field at fault, or says that it was edited.
    """
    try:
        manifest = parse_json(raw, constants=False)
    except ValueError as error:
        raise CorpusError(f"{origin}: not JSON: {error}") from error
    check_manifest(manifest, origin)
    if not _holds_its_seal(raw, manifest["sha256"]) and manifest["sha256"] != seal(manifest):
        raise CorpusError(f"{origin}: was edited or damaged after it was written (its own sha256 differs)")
    return dict(manifest)


def _holds_its_seal(raw: bytes, digest: str) -> bool:
    """Whether ``raw`` without the line of the seal has this digest, as it has when we wrote it.

    Says no of other layouts of the same content. It spares the writing of 20 MB at every start.
    """
    line = f'\n "sha256": "{digest}",'.encode()
    before, found, after = raw.partition(line)
    if not found:
        return False
    hashed = hashlib.sha256(before)
    hashed.update(after)
    return hashed.hexdigest() == digest


def check_manifest(manifest: object, origin: str) -> None:
    """Raises CorpusError that names ``origin`` and the first field that breaks the schema."""
    if isinstance(manifest, dict):
        found = (manifest.get("format"), manifest.get("version"))
        if found != (MANIFEST_FORMAT, MANIFEST_VERSION):
            wanted = f"{MANIFEST_FORMAT} version {MANIFEST_VERSION}"
            raise CorpusError(f"{origin}: format {found[0]!r} version {found[1]!r}; this reads {wanted}")
    validator = _Validator(MANIFEST_SCHEMA)
    error = jsonschema.exceptions.best_match(validator.iter_errors(manifest))
    if error is not None:
        raise CorpusError(f"{origin}: {error.json_path}: {error.message[:300]}")
