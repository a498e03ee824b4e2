"""Stage dedup: decides which documents stay. Only keys and hashes move between nodes.

The rounds: one revision of each page (dumps may overlap), no text of an evaluation set, one document for each
text, a limited number of pages for each pattern, one document for each group of near duplicates. A round sees
only the documents that the earlier rounds kept. Otherwise a text could lose all its documents.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.dedup.evaluation_files import load_evaluation
from pipeline.dedup.exact import exact_removals, hash_bucket, page_bucket, page_removals
from pipeline.dedup.paragraphs import without_paragraphs
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import REMOVALS, Removals, chosen_batches, removals_for
from pipeline.engine.commit import stable_hash
from pipeline.engine.committed_shuffle import CommittedShuffle
from pipeline.engine.shuffle_files import BUCKET
from pipeline.stages.bot_stubs import run_stubs
from pipeline.stages.contamination import run_contamination
from pipeline.stages.extract import ExtractResult
from pipeline.stages.near import run_near
from pipeline.stages.paragraphs import run_paragraphs
from pipeline.stages.signatures import PreviousSignatures, SignatureStage, reused_signatures_text
from schemas.columns.documents import DOCUMENTS
from schemas.skip_reasons import DUPLICATE, DUPLICATE_TEXT

logger = logging.getLogger(__name__)

ROWS_PER_BUCKET = 2_000_000
_FROM_DOCUMENTS = ["key", "source", "lang", "page_id", "revision", "content_hash"]
_KEYS = pa.schema(
    [
        *(DOCUMENTS.field(name) for name in _FROM_DOCUMENTS),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class DedupResult:
    """The removals, their counts, and the hash of everything that they depend on."""

    removals: Removals
    counts: dict[str, dict[str, int]]
    """Language -> reason -> removed documents."""
    stage_hash: str
    signatures: SignatureStage | None = None
    """The band hashes of the near round for later builds, or None without near dedup."""


def run_dedup(
    config: BuildConfig, work_uri: str, extracted: ExtractResult, previous: PreviousSignatures | None = None
) -> DedupResult:
    """Runs all rounds. Resumes at the first unfinished bucket.

    The near round reuses ``previous``, the band hashes of an earlier build.
    """
    settings, parts = config.dedup, extracted.parts
    inputs = [extracted.folder.stage_hash]
    removals = Removals.none().plus(_round("dedup-pages", work_uri, inputs, parts, None))
    if settings.evaluation:
        evaluation = load_evaluation(settings.evaluation)
        inputs.append(evaluation.digest)
        contaminated = run_contamination(work_uri, inputs, parts, removals, evaluation)
        removals = replace(removals, of_part=contaminated)
    if settings.exact:
        inputs.append("exact")
        removals = removals.plus(_round("dedup-texts", work_uri, inputs, parts, removals))
    if settings.max_templated is not None:
        inputs.append(f"stubs {settings.max_templated}")
        removals = removals.plus(run_stubs(work_uri, inputs, parts, removals, settings.max_templated))
    signatures = None
    if settings.near:
        jaccard = settings.jaccard
        signatures = SignatureStage.create(work_uri, inputs, jaccard, extracted.folder, previous)
        removals = removals.plus(run_near(work_uri, inputs, parts, removals, jaccard, signatures))
        if previous is not None:
            logger.info("dedup: %s", reused_signatures_text(signatures.counts()))
    if settings.max_paragraph_documents is not None:
        inputs.append(f"near {settings.near} {settings.jaccard}")
        limit = settings.max_paragraph_documents
        paragraphs, emptied = run_paragraphs(work_uri, inputs, parts, removals, limit)
        removals = replace(removals.plus(emptied), paragraphs=paragraphs)
        if settings.exact and len(paragraphs):
            inputs.append(f"cut {limit}")
            removals = removals.plus(_round("dedup-texts-cut", work_uri, inputs, parts, removals))
    stage_hash = stable_hash(*inputs, settings.model_dump(mode="json"))
    return DedupResult(removals, removals.counts(), stage_hash, signatures)


def _round(
    name: str, work_uri: str, inputs: list[str], parts: list[Part], removals: Removals | None
) -> list[str]:
    """Files of REMOVALS by equal text among the documents not in ``removals``, or by equal page if None."""
    buckets = max(1, -(-sum(part.rows for part in parts) // ROWS_PER_BUCKET))
    shuffle = CommittedShuffle.create(work_uri, name, REMOVALS, buckets, *inputs)
    by_page = removals is None
    before = Removals.none() if removals is None else removals

    def emit(part: Part) -> Iterator[pa.Table]:
        table = _key_columns(part, before)
        bucket = page_bucket(table, buckets) if by_page else hash_bucket(table["content_hash"], buckets)
        yield table.append_column(BUCKET, pa.array(bucket, pa.int64()))

    def reduce(table: pa.Table) -> pa.Table:
        if by_page:
            return removals_for(DUPLICATE, page_removals(table))
        return removals_for(DUPLICATE_TEXT, exact_removals(table))

    shuffle.run(parts, emit, reduce, _KEYS, part_size)
    return shuffle.files()


def _key_columns(part: Part, removals: Removals) -> pa.Table:
    cutting = len(removals.paragraphs) > 0
    columns = [*_FROM_DOCUMENTS, *(("sentences", "paragraph_sentences") if cutting else ())]
    tables = [_KEYS.empty_table()]
    for rows, batch in chosen_batches(part, removals.kept_rows(part), columns):
        table = without_paragraphs(batch, removals.paragraphs) if cutting else batch
        places = [pa.array(np.full(len(rows), part.ordinal), pa.int32()), pa.array(rows, pa.int32())]
        tables.append(pa.table([*table.select(_FROM_DOCUMENTS).columns, *places], schema=_KEYS))
    return pa.concat_tables(tables)
