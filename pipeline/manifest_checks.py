"""What contradicts itself in a corpus manifest, before a single shard is opened."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from schemas.shards import LABEL_CONVENTIONS

Manifest = dict[str, Any]


def set_label(entry: Manifest) -> str:
    """Name of a set in the manifest's counts: name/split/pass."""
    return f"{entry['name']}/{entry['split']}/{entry['pass']}"


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Sums that do not add up, names that are there twice, accounts that do not close."""
    objective = manifest["objective"]
    if manifest["label_convention"] != LABEL_CONVENTIONS[objective]:
        yield f"label_convention is not that of {objective}"
    labels = Counter(set_label(entry) for entry in manifest["sets"])
    yield from (f"set {label} is there twice" for label, count in labels.items() if count > 1)
    paths = Counter(shard["path"] for entry in manifest["sets"] for shard in entry["shards"])
    yield from (f"shard {path} is named twice" for path, count in paths.items() if count > 1)
    for entry in manifest["sets"]:
        for name in ("rows", "tokens"):
            if entry[name] != sum(shard[name] for shard in entry["shards"]):
                yield f"set {set_label(entry)}: {name} is not the sum over its shards"
        for shard in entry["shards"]:
            if sum(shard["row_groups"]) != shard["rows"]:
                yield f"{shard['path']}: row_groups do not add up to rows"
            if sum(shard["languages"].values()) != shard["rows"]:
                yield f"{shard['path']}: languages do not add up to rows"
    yield from _count_problems(manifest, set(labels))
    yield from _language_problems(manifest)


def _count_problems(manifest: Manifest, labels: set[str]) -> Iterator[str]:
    counts = manifest["counts"].get("by_set", {})
    yield from (f"set {label} has no counts" for label in sorted(labels - counts.keys()))
    yield from (f"counts of {label}: there is no such set" for label in sorted(counts.keys() - labels))
    for label, account in counts.items():
        out = account["tokens_used"] + account["tokens_cut"] + sum(account["left_over"].values())
        if account["tokens_in"] != out:
            yield f"counts of {label}: tokens in are not tokens used, cut and left over"


def _language_problems(manifest: Manifest) -> Iterator[str]:
    """Accounts of the languages: closed, and the same as the shards' rows and the totals."""
    rows: Counter[str] = Counter()
    for entry in manifest["sets"]:
        for shard in entry["shards"]:
            rows.update(shard["languages"])
    yield from (
        f"language {lang} has rows and no account" for lang in sorted(rows.keys() - manifest["languages"])
    )
    for lang, account in manifest["languages"].items():
        if "instances" in account and account["instances"] != rows[lang]:
            yield f"language {lang}: instances are {account['instances']}, the shards have {rows[lang]} rows"
        yield from (f"language {lang}: {text}" for text in _open_account(account))
    accounts = [account for account in manifest["languages"].values() if "documents" in account]
    documents = manifest["counts"].get("documents")
    if documents is not None and documents != sum(account["documents"] for account in accounts):
        yield "counts: documents are not the sum over the languages"


def _open_account(account: Manifest) -> Iterator[str]:
    """Sums within the account of one language, of the fields that it has."""
    for whole, parts in (
        ("pages_seen", ("pages_skipped", "duplicates", "documents")),
        ("documents", ("train_documents", "validation_documents")),
    ):
        if account.keys() >= {whole, *parts} and account[whole] != sum(account[part] for part in parts):
            yield f"{whole} are not the sum of {', '.join(parts)}"
    for whole, by_reason in (("pages_skipped", "skipped"), ("duplicates", "dropped")):
        if account.keys() >= {whole, by_reason} and account[whole] != sum(account[by_reason].values()):
            yield f"{whole} are not the sum of {by_reason}"
