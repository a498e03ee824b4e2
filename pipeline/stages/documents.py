"""Stage documents: writes the kept documents as a dataset, if publish.documents is set."""

from collections import Counter
from dataclasses import dataclass

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.documents.part import Part, part_size
from pipeline.documents.published import SIDES, DocumentShard, PartCount, plan_shards, shard_tables
from pipeline.documents.removals import Removals
from pipeline.documents.split import Split
from pipeline.engine.commit import PartWriter, RowCounts, StageFolder
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import map_items
from pipeline.stages.dedup import DedupResult
from pipeline.stages.extract import ExtractResult
from pipeline.stages.split import count_part, split_of
from schemas.columns.published_documents import PUBLISHED_DOCUMENTS, PUBLISHED_VERSION
from schemas.manifest import DocumentFile


@dataclass(frozen=True)
class _Plan:
    """The files to write."""

    shards: list[DocumentShard]


def run_documents(
    config: BuildConfig, work_uri: str, extracted: ExtractResult, deduplicated: DedupResult
) -> list[DocumentFile]:
    """Writes the unfinished files, and returns all of them. By default there are none."""
    if not config.publish.documents:
        return []
    split, output = split_of(config), config.output
    inputs = (PUBLISHED_VERSION, deduplicated.stage_hash, vars(split))
    removals = deduplicated.removals
    plan = StageFolder.create(work_uri, "documents-plan", _Plan, *inputs)
    marker = plan.marker("plan") or plan.commit("plan", [], _Plan(_planned(extracted.parts, removals, split)))
    shards = marker.counts.shards
    folder = StageFolder.create(work_uri, "documents", RowCounts, *inputs)
    finished = folder.finished()
    pending = [shard for shard in shards if shard.unit_id not in finished]
    progress = Progress("documents", len(pending), skipped=len(shards) - len(pending))

    def work(item: tuple[DocumentShard, list[Part]]) -> int:
        shard, parts = item
        # A task has several files. A retried task may have committed some of them.
        if folder.marker(shard.unit_id) is None:
            with PartWriter(PUBLISHED_DOCUMENTS, storage.join(output, shard.path), shard.path) as writer:
                for table in shard_tables(shard, parts, removals, split):
                    writer.write(table)
                file = writer.finish()
            folder.commit(shard.unit_id, [file], RowCounts(file.rows))
        return shard.text_bytes

    items = [(shard, [extracted.parts[part] for part in shard.parts]) for shard in pending]
    for text_bytes in map_items(items, work, lambda item: item[0].text_bytes):
        progress.advance(text_bytes)
    written = folder.finished()
    return [
        DocumentFile(
            path=file.path,
            lang=shard.lang,
            split=shard.side,
            rows=file.rows,
            bytes=file.bytes,
            sha256=file.sha256,
        )
        for shard in shards
        for file in written[shard.unit_id].files
    ]


def _planned(parts: list[Part], removals: Removals, split: Split) -> list[DocumentShard]:
    """The files, planned from the number of remaining documents of each language in each part."""

    def work(part: Part) -> list[PartCount]:
        return _counts(part.ordinal, count_part(part, removals, split))

    return plan_shards(count for counts in map_items(parts, work, part_size) for count in counts)


def _counts(part: int, counts: Counter[tuple[str, str]]) -> list[PartCount]:
    languages = sorted({lang for lang, _ in counts})
    return [
        PartCount(lang, side, part, counts[lang, f"{side}_documents"], counts[lang, f"{side}_bytes"])
        for lang in languages
        for side in SIDES
    ]
