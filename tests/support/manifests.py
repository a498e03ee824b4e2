"""Corpus manifests for tests in their JSON form, which tests edit. `sealed` writes them as a build does."""

import json
from typing import Any

from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import MANIFEST_FORMAT, MANIFEST_VERSION, dump_manifest, validate_manifest

MASKING = {
    "unit": "whole_word",
    "probability": 0.15,
    "mask_share": 0.8,
    "random_share": 0.1,
    "predict_unknown": False,
    "word_list": None,
}


def manifest_body(
    sets: list[dict[str, Any]], vocabulary: dict[str, Any], languages: dict[str, Any], objective: str = "nsp"
) -> dict[str, Any]:
    """A manifest of these sets without counts of pages and documents."""
    return {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "objective": objective,
        "label_convention": LABEL_CONVENTIONS[objective],
        "masking": dict(MASKING),
        "vocabulary": {"path": "tokenizer/vocab.txt", "cased": True, **vocabulary},
        "languages": languages,
        "sets": sets,
        "counts": {
            "pages": {"pages_seen": 0, "kept": 0, "skipped": {}},
            "removals": {},
            "documents": 0,
            "vocabulary": None,
            "tokens": {"tokens_in": 0, "tokens_used": 0, "tokens_cut": 0, "tokens_left_over": 0},
            "by_set": {},
        },
        "config": {},
        "config_hash": "0" * 64,
        "code_version": "test",
        "libraries": {},
    }


def language_counts(**fields: Any) -> dict[str, Any]:
    """The counts of a language, 0 where not given."""
    zeros = dict.fromkeys(
        ("pages_seen", "pages_skipped", "removed", "documents", "train_documents", "train_bytes",
         "validation_documents", "validation_bytes", "sequences", "tokens", "words", "subwords", "unknown"),
        0,
    )  # fmt: skip
    return {"skipped": {}, "text_counts": {}, "removals": {}, "copies": 0.0, **zeros, **fields}


def set_entry(
    name: str, max_seq_length: int, pass_number: int, shards: list[dict[str, Any]], **fields: Any
) -> dict[str, Any]:
    """A training set of these shards."""
    return {
        "name": name,
        "split": "train",
        "max_seq_length": max_seq_length,
        "max_predictions": max(1, max_seq_length // 6),
        "pass_number": pass_number,
        "rows": sum(shard["rows"] for shard in shards),
        "tokens": sum(shard["tokens"] for shard in shards),
        "shards": shards,
        **fields,
    }


def sealed(body: dict[str, Any]) -> bytes:
    """The bytes of the manifest file. Raises CorpusError when a field is wrong."""
    return dump_manifest(validate_manifest(json.dumps(body).encode(), "manifest to write"))
