"""Creates a fictitious build of many languages for report pages."""

from typing import Any

from schemas.instance_counts import LENGTH_BINS, InstanceCounts
from schemas.manifest import Manifest, parse_manifest
from schemas.vocabulary import SPECIAL_TOKENS
from tests.support.manifests import language_counts, manifest_body, sealed, set_entry

CODES = [first + second for first in "abcdefghijk" for second in "ehlnrstuwz"]
LANGUAGES = [*CODES, "zh-min-nan", "be-x-old"]


def example(languages: list[str]) -> tuple[Manifest, dict[str, dict[str, InstanceCounts]]]:
    """Manifest and counts. Every number depends on the language's position in the list."""
    by_language = {lang: _language(len(languages) - place) for place, lang in enumerate(languages)}
    counts = {
        f"len{length}/{split}": {
            lang: _counts(len(languages) - place) for place, lang in enumerate(languages)
        }
        for length in (128, 512)
        for split in ("train/0", "validation/0")
    }
    pages = sum(of_lang["pages_seen"] for of_lang in by_language.values())
    skipped = sum(of_lang["pages_skipped"] for of_lang in by_language.values())
    removed = sum(of_lang["removed"] for of_lang in by_language.values())
    sets = [_set(name, counts[name]) for name in counts]
    special = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    vocabulary = {"sha256": "fedcba98" * 8, "size": 30000, "special_ids": special}
    body = manifest_body(sets, vocabulary, by_language)
    body["counts"] |= {
        "pages": {"pages_seen": pages, "kept": pages - skipped, "skipped": {"redirect": skipped}},
        "removals": {"duplicate": removed},
        "documents": pages - skipped - removed,
    }
    body["config"] = {"seed": 1, "sources": [{"name": "<w>", "kind": "wikimedia"}]}
    return parse_manifest(sealed(body), "example"), counts


def _language(size: int) -> dict[str, Any]:
    return language_counts(
        pages_seen=10 * size, pages_skipped=3 * size, skipped={"redirect": 3 * size},
        removed=size, removals={"duplicate": size}, documents=6 * size, train_documents=5 * size,
        validation_documents=size, train_bytes=1000 * size * size, validation_bytes=10 * size,
        copies=1.5, sequences=40 * size, tokens=4000 * size, words=2000 * size,
        subwords=3000 * size, unknown=45 * (size % 3),
    )  # fmt: skip


def _counts(size: int) -> InstanceCounts:
    return InstanceCounts(
        documents=6 * size, tokens_in=3000 * size, tokens_used=2700 * size, tokens_cut=200 * size,
        left_over={"no_partner": 100 * size}, sequences=10 * size, sequence_tokens=1000 * size,
        labels={"0": 6 * size, "1": 4 * size}, events={"no_random_partner": size}, masked=150 * size,
        masked_by_mask=120 * size, masked_unchanged=15 * size,
        lengths=[size * number for number in range(LENGTH_BINS)],
        document_sentences=[size] * 6 + [0] * 10,
    )  # fmt: skip


def _set(name: str, by_language: dict[str, InstanceCounts]) -> dict[str, Any]:
    label, split, number = name.split("/")
    tokens = sum(counts.sequence_tokens for counts in by_language.values())
    rows = sum(counts.sequences for counts in by_language.values())
    shard = {
        "path": f"{name}-00000.parquet", "rows": rows, "tokens": tokens, "bytes": 2 * tokens,
        "sha256": "0" * 64, "languages": {},
    }  # fmt: skip
    return set_entry(label, int(label[3:]), int(number), [shard], split=split)
