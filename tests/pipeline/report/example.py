"""A made-up build of many languages, for pages about it."""

from typing import Any

from pipeline.instances.counts import LENGTH_BINS, InstanceCounts

CODES = [first + second for first in "abcdefghijk" for second in "ehlnrstuwz"]
LANGUAGES = [*CODES, "zh-min-nan", "be-x-old"]


def example(languages: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, InstanceCounts]]]:
    """Manifest and counts; every figure depends on the language's place in the list."""
    by_language = {lang: _entry(len(languages) - place) for place, lang in enumerate(languages)}
    counts = {
        f"len{length}/{split}": {
            lang: _counts(len(languages) - place) for place, lang in enumerate(languages)
        }
        for length in (128, 512)
        for split in ("train/0", "validation/0")
    }
    pages = sum(entry["pages_seen"] for entry in by_language.values())
    skipped = sum(entry["pages_skipped"] for entry in by_language.values())
    duplicates = sum(entry["duplicates"] for entry in by_language.values())
    manifest = {
        "code_version": "1.2.3",
        "config_hash": "0123456789abcdef",
        "vocabulary": {"sha256": "fedcba9876543210", "size": 30000},
        "label_convention": {"0": "is_next", "1": "random_next"},
        "languages": by_language,
        "sets": [_set(name, counts[name]) for name in counts],
        "counts": {
            "pages": {"pages_seen": pages, "kept": pages - skipped, "skipped": {"redirect": skipped}},
            "duplicates": {"exact": duplicates},
            "documents": pages - skipped - duplicates,
        },
        "config": {"seed": 1, "sources": [{"name": "<w>", "kind": "wikimedia"}]},
    }
    return manifest, counts


def _entry(size: int) -> dict[str, Any]:
    return {
        "pages_seen": 10 * size, "pages_skipped": 3 * size, "skipped": {"redirect": 3 * size},
        "duplicates": size, "dropped": {"exact": size}, "documents": 6 * size, "train_documents": 5 * size,
        "validation_documents": size, "train_bytes": 1000 * size * size, "validation_bytes": 10 * size,
        "copies": 1.5, "instances": 40 * size, "tokens": 4000 * size, "words": 2000 * size,
        "pieces": 3000 * size, "unknown": 45 * (size % 3),
    }  # fmt: skip


def _counts(size: int) -> InstanceCounts:
    return InstanceCounts(
        documents=6 * size, tokens_in=3000 * size, tokens_used=2700 * size, tokens_cut=200 * size,
        left_over={"no_partner": 100 * size}, rows=10 * size, row_tokens=1000 * size,
        labels={"0": 6 * size, "1": 4 * size}, events={"no_random_partner": size}, masked=150 * size,
        masked_by_mask=120 * size, masked_unchanged=15 * size,
        lengths=[size * number for number in range(LENGTH_BINS)],
        document_sentences=[size] * 6 + [0] * 10,
    )  # fmt: skip


def _set(name: str, by_language: dict[str, InstanceCounts]) -> dict[str, Any]:
    label, split, number = name.split("/")
    tokens = sum(account.row_tokens for account in by_language.values())
    return {
        "name": label, "split": split, "pass": int(number), "max_seq_length": int(label[3:]),
        "rows": sum(account.rows for account in by_language.values()), "tokens": tokens,
        "shards": [{"bytes": 2 * tokens}],
    }  # fmt: skip
