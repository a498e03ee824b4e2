"""Stage dedup: which documents stay. Only keys and hashes travel, and losers are named by (part, row).

Rounds by hash bucket: one revision a page (overlapping dumps), nothing that is in an evaluation set,
one document a text, so many pages of one pattern, one of near duplicates. Each sees only the survivors
of those before it, else a text could lose all its carriers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.commit import StageFolder, stable_hash
from pipeline.committed_shuffle import CommittedShuffle
from pipeline.config import BuildConfig
from pipeline.dedup.exact import exact_losers, hash_bucket, page_bucket, page_losers
from pipeline.dedup.paragraphs import without_paragraphs
from pipeline.losers import LOSERS, Gone, chosen_batches, in_order, kept_rows, losers_for
from pipeline.ray_stage import BUCKET, Row
from pipeline.skip_reasons import DUPLICATE, DUPLICATE_TEXT
from pipeline.stage_contamination import load_evaluation, run_contamination
from pipeline.stage_extract import Extracted, Part
from pipeline.stage_near import run_near
from pipeline.stage_paragraphs import run_paragraphs
from pipeline.stage_stubs import run_stubs
from schemas.documents import DOCUMENTS

ROWS_PER_BUCKET = 2_000_000
_FROM_DOCUMENTS = ["key", "source", "lang", "page_id", "revision", "content_hash"]
_KEYS = pa.schema(
    [
        *(DOCUMENTS.field(name) for name in _FROM_DOCUMENTS),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
_NO_PARAGRAPHS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Deduplicated:
    """Losers sorted by (part, row), how many by language and reason, and the hash of what they depend on."""

    losers: pa.Table
    # Hashes of the paragraphs that are cut out of the documents that stay, ascending.
    paragraphs: npt.NDArray[np.uint64]
    counts: dict[str, dict[str, int]]
    stage_hash: str

    @property
    def gone(self) -> Gone:
        """What a reader of documents must leave out."""
        return Gone(self.losers, self.paragraphs)


def run_dedup(config: BuildConfig, work_uri: str, extracted: Extracted) -> Deduplicated:
    """All rounds, resuming at the first bucket that is not done."""
    settings, parts = config.dedup, extracted.parts
    inputs = [extracted.folder.stage_hash]
    losers = _sorted([_round("dedup-pages", work_uri, inputs, parts, None)])
    if settings.evaluation:
        runs = load_evaluation(settings.evaluation)
        inputs.append(runs.digest)
        losers = _sorted([losers, run_contamination(work_uri, inputs, parts, losers, runs)])
    if settings.exact:
        inputs.append("exact")
        losers = _sorted(
            [losers, _round("dedup-texts", work_uri, inputs, parts, Gone(losers, _NO_PARAGRAPHS))]
        )
    if settings.max_templated is not None:
        inputs.append(f"stubs {settings.max_templated}")
        losers = _sorted([losers, run_stubs(work_uri, inputs, parts, losers, settings.max_templated)])
    if settings.near:
        losers = _sorted([losers, run_near(work_uri, inputs, parts, losers, settings.jaccard)])
    paragraphs = _NO_PARAGRAPHS
    if settings.max_paragraph_documents is not None:
        inputs.append(f"near {settings.near} {settings.jaccard}")
        paragraphs, emptied = run_paragraphs(
            work_uri, inputs, parts, losers, settings.max_paragraph_documents
        )
        losers = _sorted([losers, emptied])
        if settings.exact and len(paragraphs):
            inputs.append(f"cut {settings.max_paragraph_documents}")
            equal = _round("dedup-texts-cut", work_uri, inputs, parts, Gone(losers, paragraphs))
            losers = _sorted([losers, equal])
    counts: dict[str, Counter[str]] = {}
    for lang, reason in zip(losers["lang"].to_pylist(), losers["reason"].to_pylist(), strict=True):
        counts.setdefault(lang, Counter())[reason] += 1
    by_lang = {lang: dict(sorted(by.items())) for lang, by in sorted(counts.items())}
    return Deduplicated(losers, paragraphs, by_lang, stable_hash(*inputs, settings.model_dump(mode="json")))


def _sorted(tables: list[pa.Table]) -> pa.Table:
    return in_order(pa.concat_tables(tables)).combine_chunks()


def _round(name: str, work_uri: str, inputs: list[str], parts: list[Part], gone: Gone | None) -> pa.Table:
    """LOSERS by equal text among the documents that are not ``gone``, or by equal page where None are."""
    buckets = max(1, -(-sum(part.rows for part in parts) // ROWS_PER_BUCKET))
    folder = StageFolder.create(work_uri, name, buckets, *inputs)
    losers = CommittedShuffle(folder, LOSERS, buckets)
    by_page = gone is None

    def emit(row: Row) -> Iterator[pa.Table]:
        table = _key_columns(Part(**row), gone)
        bucket = page_bucket(table, buckets) if by_page else hash_bucket(table["content_hash"], buckets)
        yield table.append_column(BUCKET, pa.array(bucket, pa.int64()))

    def reduce(table: pa.Table) -> pa.Table:
        if by_page:
            return losers_for(DUPLICATE, page_losers(table))
        return losers_for(DUPLICATE_TEXT, exact_losers(table))

    losers.run([vars(part) for part in parts], emit, reduce, _KEYS)
    return losers.read_all()


def _key_columns(part: Part, gone: Gone | None) -> pa.Table:
    kept = np.ones(part.rows, bool) if gone is None else kept_rows(gone.losers, part)
    cutting = gone is not None and len(gone.paragraphs) > 0
    columns = [*_FROM_DOCUMENTS, *(("sentences", "paragraph_sentences") if cutting else ())]
    found = [_KEYS.empty_table()]
    for rows, table in chosen_batches(part, kept, columns):
        cut = without_paragraphs(table, gone.paragraphs) if gone is not None and cutting else table
        places = [pa.array(np.full(len(rows), part.ordinal), pa.int32()), pa.array(rows, pa.int32())]
        found.append(pa.table([*cut.select(_FROM_DOCUMENTS).columns, *places], schema=_KEYS))
    return pa.concat_tables(found)
