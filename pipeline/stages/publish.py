"""Stage publish: checks that all counts balance, then writes card, report, tables, and last the manifest."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from cluster import storage
from pipeline.config import NOT_OF_THE_CORPUS, BuildConfig
from pipeline.documents.reuse.previous_pages import reused_text
from pipeline.engine.build_identity import BuildIdentity
from pipeline.engine.progress import Progress
from pipeline.instances.sets import InstancesResult, sequences_by_language, texts_by_language, totals
from pipeline.instances.slots import SplitCounts
from pipeline.instances.word_lists import WORD_LIST_PATH
from pipeline.report.dataset_card import dataset_card
from pipeline.report.documents_card import documents_card
from pipeline.report.html import html_report
from pipeline.stages.dedup import DedupResult
from pipeline.stages.extract import ExtractResult
from pipeline.stages.signatures import reused_signatures_text
from pipeline.stages.split import SplitResult
from pipeline.stages.vocabulary import VocabularyResult
from schemas.errors import CorpusError
from schemas.instance_counts import InstanceCounts
from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import (
    MANIFEST_NAME,
    CorpusCounts,
    DocumentFile,
    LanguageCounts,
    Manifest,
    MaskingRecord,
    PageCounts,
    TokenCounts,
    VocabularyFile,
    WordListFile,
    dump_manifest,
)
from schemas.redaction import public_fields
from schemas.vocabulary import SPECIAL_TOKENS

TIMED_REPORT = "work/report.html"
# Libraries whose version can change the bytes of the output.
_LIBRARIES = ("numpy", "pyarrow")


@dataclass(frozen=True)
class StageResults:
    """The results of all earlier stages."""

    extracted: ExtractResult
    deduplicated: DedupResult
    split: SplitResult
    vocabulary: VocabularyResult
    instances: InstancesResult
    documents: list[DocumentFile]


def publish(
    config: BuildConfig, identity: BuildIdentity, results: StageResults, times: Sequence[Progress]
) -> Manifest:
    """Writes dataset card, report, shard tables and manifest, and returns the manifest.

    Only the copy of the report in the work folder shows ``times``, because no published byte may depend on
    them. A build without remaining work does not replace that copy. Raises CorpusError if counts do not
    balance.
    """
    manifest = build_manifest(config, identity, results)
    raw = dump_manifest(manifest)
    output = config.output
    storage.put_bytes(storage.join(output, "README.md"), dataset_card(manifest).encode())
    if manifest.documents:
        card = documents_card(manifest).encode()
        storage.put_bytes(storage.join(output, "documents", "README.md"), card)
    counts = results.instances.counts
    storage.put_bytes(storage.join(output, "report.html"), html_report(manifest, counts).encode())
    if any(progress.done for progress in times):
        timed = html_report(manifest, counts, times, list(_reused(results)))
        storage.put_bytes(storage.join(output, TIMED_REPORT), timed.encode())
    for path, table in results.instances.shard_tables.items():
        storage.put_bytes(storage.join(output, path), table)
    storage.put_bytes(storage.join(output, MANIFEST_NAME), raw)
    return manifest


def _reused(results: StageResults) -> Iterator[str]:
    """Lines on the reuse of an earlier build."""
    pages, signatures = results.extracted.reused, results.deduplicated.signatures
    if pages.pages:
        yield f"Stage extract {reused_text(pages)}."
    if signatures is not None and signatures.previous is not None:
        yield f"Stage dedup {reused_signatures_text(signatures.counts())}."


def build_manifest(config: BuildConfig, identity: BuildIdentity, results: StageResults) -> Manifest:
    """The manifest of a build. Raises CorpusError if counts do not balance."""
    vocabulary = results.vocabulary.vocabulary
    masking, word_list = config.instances.masking, results.instances.word_list
    manifest = Manifest(
        objective=config.instances.objective,
        label_convention=LABEL_CONVENTIONS[config.instances.objective],
        masking=MaskingRecord(
            unit=masking.unit,
            probability=masking.probability,
            mask_share=masking.mask_share,
            random_share=masking.random_share,
            predict_unknown=masking.predict_unknown,
            word_list=WordListFile(path=WORD_LIST_PATH, sha256=word_list) if word_list else None,
        ),
        vocabulary=VocabularyFile(
            path=results.vocabulary.path,
            size=len(vocabulary.pieces),
            sha256=vocabulary.sha256,
            cased=vocabulary.cased,
            special_ids={token: vocabulary.index[token] for token in SPECIAL_TOKENS},
        ),
        languages=_languages(results),
        sets=results.instances.sets,
        documents=results.documents,
        counts=_counts(results),
        config=public_fields(config.model_dump(mode="json", exclude=NOT_OF_THE_CORPUS)),
        config_hash=identity.config_hash,
        code_version=identity.code_version,
        plugins=identity.plugins,
        libraries={name: version(name) for name in _LIBRARIES},
    )
    _check_balance(manifest)
    return manifest


def _languages(results: StageResults) -> dict[str, LanguageCounts]:
    sequences, texts = sequences_by_language(results.instances), texts_by_language(results.instances)
    languages = {}
    for lang, funnel in sorted(results.extracted.funnel.languages.items()):
        removals = results.deduplicated.counts.get(lang, {})
        removed = sum(removals.values())
        sampling = results.instances.sampling.languages.get(lang)
        text = texts.get(lang, InstanceCounts())
        of_lang = sequences.get(lang, InstanceCounts())
        languages[lang] = LanguageCounts(
            pages_seen=funnel.pages_seen,
            pages_skipped=funnel.skipped.total(),
            skipped=dict(sorted(funnel.skipped.items())),
            text_counts=dict(sorted(funnel.text_counts.items())),
            removed=removed,
            removals=removals,
            documents=funnel.kept - removed,
            **asdict(results.split.languages.get(lang, SplitCounts())),
            copies=sampling.copies if sampling else 0.0,
            sequences=of_lang.sequences,
            tokens=of_lang.sequence_tokens,
            words=text.words_in,
            subwords=text.tokens_in,
            unknown=text.tokens_unknown,
        )
    return languages


def _counts(results: StageResults) -> CorpusCounts:
    removals: Counter[str] = Counter()
    for by_reason in results.deduplicated.counts.values():
        removals.update(by_reason)
    funnel = results.extracted.funnel
    by_set = {label: totals(counts) for label, counts in results.instances.counts.items()}
    return CorpusCounts(
        pages=PageCounts(
            pages_seen=funnel.pages_seen, kept=funnel.kept, skipped=dict(sorted(funnel.skipped.items()))
        ),
        removals=dict(sorted(removals.items())),
        documents=funnel.kept - removals.total(),
        vocabulary=results.vocabulary.counts,
        tokens=TokenCounts.of(totals(by_set)),
        by_set=by_set,
    )


def _check_balance(manifest: Manifest) -> None:
    """Raises CorpusError unless the input equals what was used plus what was counted as left out."""
    pages, tokens, documents = manifest.counts.pages, manifest.counts.tokens, manifest.counts.documents
    if pages.pages_seen != pages.kept + sum(pages.skipped.values()):
        raise CorpusError(f"pages do not balance: {pages}")
    languages = manifest.languages.values()
    by_language = sum(counts.documents for counts in languages)
    by_side = sum(counts.train_documents + counts.validation_documents for counts in languages)
    if not by_language == by_side == documents:
        raise CorpusError(
            f"documents do not balance: {by_language} by language, {by_side} by side of the split, "
            f"{documents} in total"
        )
    published = sum(file.rows for file in manifest.documents)
    if manifest.documents and published != documents:
        raise CorpusError(f"documents do not balance: {published} published, {documents} in total")
    if tokens.tokens_in != tokens.tokens_used + tokens.tokens_cut + tokens.tokens_left_over:
        raise CorpusError(f"tokens do not balance: {tokens}")
