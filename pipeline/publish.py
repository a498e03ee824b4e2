"""Stage publish: closes the balance, then writes dataset card, report and, last of all, the manifest."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.instances.counts import InstanceCounts
from pipeline.instances.sets import InstancesMade, rows_by_language, texts_by_language, totals
from pipeline.progress import Progress
from pipeline.report.dataset_card import dataset_card
from pipeline.report.html import html_report
from pipeline.stage_dedup import Deduplicated
from pipeline.stage_extract import Extracted
from pipeline.stage_split import COUNTED, SplitCounts
from pipeline.stage_vocabulary import VocabularyReady
from pipeline.word_lists import WORDS_PATH
from schemas.errors import CorpusError
from schemas.manifest import MANIFEST_FORMAT, MANIFEST_NAME, MANIFEST_VERSION, dump_manifest
from schemas.shards import LABEL_CONVENTIONS
from schemas.versions import CODE_VERSION
from schemas.vocabulary import SPECIAL_TOKENS

TIMED_REPORT = "work/report.html"
# Libraries whose version can change a byte of the output.
_LIBRARIES = ("numpy", "pyarrow", "sentencex")


@dataclass(frozen=True)
class StageResults:
    """What the stages before this one hand over."""

    extracted: Extracted
    deduplicated: Deduplicated
    split: SplitCounts
    vocabulary: VocabularyReady
    made: InstancesMade


def publish(
    config: BuildConfig, config_hash: str, results: StageResults, times: Sequence[Progress]
) -> dict[str, Any]:
    """Writes the corpus' front matter and returns its manifest. Raises CorpusError on an open balance.

    ``times`` of the stages are shown in the work folder's copy of the report only: no published byte may
    depend on them. A build that had nothing left to do leaves that copy as it is.
    """
    manifest = build_manifest(config, config_hash, results)
    raw = dump_manifest(manifest)
    output = config.output
    storage.put_bytes(storage.join(output, "README.md"), dataset_card(manifest).encode())
    counts = results.made.counts
    storage.put_bytes(storage.join(output, "report.html"), html_report(manifest, counts).encode())
    if any(progress.done for progress in times):
        timed = html_report(manifest, counts, times)
        storage.put_bytes(storage.join(output, TIMED_REPORT), timed.encode())
    storage.put_bytes(storage.join(output, MANIFEST_NAME), raw)
    return manifest


def build_manifest(config: BuildConfig, config_hash: str, results: StageResults) -> dict[str, Any]:
    """The manifest as a dictionary. Raises CorpusError when counts do not add up."""
    words = results.vocabulary.vocabulary
    special = {token: words.index[token] for token in SPECIAL_TOKENS}
    languages = _languages(results)
    counts = _counts(results)
    _check_balance(counts, languages)
    return {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "objective": config.instances.objective,
        "label_convention": LABEL_CONVENTIONS[config.instances.objective],
        "masking": config.instances.masking.model_dump(mode="json") | {"words": _word_list(results.made)},
        "vocabulary": {
            "path": results.vocabulary.path,
            "size": len(words.pieces),
            "sha256": words.sha256,
            "cased": words.cased,
            "special_ids": special,
        },
        "languages": languages,
        "sets": results.made.sets,
        "counts": counts,
        "config": config.model_dump(mode="json", exclude={"output"}),
        "config_hash": config_hash,
        "code_version": CODE_VERSION,
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def _word_list(made: InstancesMade) -> dict[str, str] | None:
    return None if made.words is None else {"path": WORDS_PATH, "sha256": made.words}


def _languages(results: StageResults) -> dict[str, Any]:
    rows, texts = rows_by_language(results.made), texts_by_language(results.made)
    result = {}
    for lang, funnel in sorted(results.extracted.funnel.languages.items()):
        dropped = results.deduplicated.counts.get(lang, {})
        sides = results.split.get(lang, dict.fromkeys(COUNTED, 0))
        sampling = results.made.sampling.languages.get(lang)
        text = texts.get(lang, InstanceCounts())
        result[lang] = {
            "pages_seen": funnel.pages_seen,
            "pages_skipped": sum(funnel.skipped.values()),
            "skipped": dict(sorted(funnel.skipped.items())),
            "extra": dict(sorted(funnel.extra.items())),
            "duplicates": sum(dropped.values()),
            "dropped": dropped,
            "documents": funnel.kept - sum(dropped.values()),
            **sides,
            "copies": sampling.copies if sampling else 0,
            "instances": rows[lang]["instances"] if lang in rows else 0,
            "tokens": rows[lang]["tokens"] if lang in rows else 0,
            "words": text.words_in,
            "pieces": text.tokens_in,
            "unknown": text.tokens_unknown,
        }
    return result


def _counts(results: StageResults) -> dict[str, Any]:
    duplicates: Counter[str] = Counter()
    for by_reason in results.deduplicated.counts.values():
        duplicates.update(by_reason)
    funnel = results.extracted.funnel
    by_set = {name: totals(counts) for name, counts in results.made.counts.items()}
    everything = totals(by_set)
    return {
        "pages": {
            "pages_seen": funnel.pages_seen,
            "kept": funnel.kept,
            "skipped": dict(sorted(funnel.skipped.items())),
        },
        "duplicates": dict(sorted(duplicates.items())),
        "documents": funnel.kept - sum(duplicates.values()),
        "vocabulary": results.vocabulary.counts,
        "tokens": token_account(everything),
        "by_set": {name: account.as_dict() for name, account in by_set.items()},
    }


def token_account(account: InstanceCounts) -> dict[str, int]:
    """Tokens in, used, cut and left over; the last three add up to the first."""
    return {
        "tokens_in": account.tokens_in,
        "tokens_used": account.tokens_used,
        "tokens_cut": account.tokens_cut,
        "tokens_left_over": sum(account.left_over.values()),
    }


def _check_balance(counts: dict[str, Any], languages: dict[str, Any]) -> None:
    """Law 3: what came in equals what is used plus what is named as left out."""
    pages, tokens = counts["pages"], counts["tokens"]
    if pages["pages_seen"] != pages["kept"] + sum(pages["skipped"].values()):
        raise CorpusError(f"pages do not add up: {pages}")
    used = sum(entry["documents"] for entry in languages.values())
    split = sum(entry["train_documents"] + entry["validation_documents"] for entry in languages.values())
    if not used == split == counts["documents"]:
        raise CorpusError(
            f"documents do not add up: {used} by language, {split} by side of the split, "
            f"{counts['documents']} in all"
        )
    if tokens["tokens_in"] != tokens["tokens_used"] + tokens["tokens_cut"] + tokens["tokens_left_over"]:
        raise CorpusError(f"tokens do not add up: {tokens}")
