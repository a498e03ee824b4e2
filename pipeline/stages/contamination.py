"""Removes documents that contain text of evaluation sets, with a map over documents parts."""

import numpy as np
import pyarrow as pa
import ray

from pipeline.dedup.contamination import contaminated
from pipeline.dedup.evaluation_files import EvaluationRuns
from pipeline.dedup.paragraphs import offsets_of
from pipeline.dedup.shingles import hashed_words
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import REMOVALS, Removals, chosen_batches, removals_without_keeper
from pipeline.engine.commit import PartWriter, RowCounts, StageFolder
from pipeline.engine.ray_data import map_items
from schemas.arrays import U64
from schemas.skip_reasons import CONTAMINATED


def run_contamination(
    work_uri: str, inputs: list[str], parts: list[Part], removals: Removals, evaluation: EvaluationRuns
) -> dict[int, str]:
    """Part -> file of REMOVALS: its documents that share a run of words with an evaluation set."""
    folder = StageFolder.create(work_uri, "dedup-evaluation", RowCounts, *inputs)
    finished = folder.finished()
    shared_runs = ray.put(evaluation.runs)

    def work(part: Part) -> int:
        contaminated = _contaminated_rows(part, removals, ray.get(shared_runs))
        name = f"{_unit_id(part)}.parquet"
        with PartWriter(REMOVALS, folder.path(name), name) as writer:
            writer.write(contaminated)
            folder.commit(_unit_id(part), [writer.finish()], RowCounts(contaminated.num_rows))
        return int(contaminated.num_rows)

    for _ in map_items([part for part in parts if _unit_id(part) not in finished], work, part_size):
        pass
    markers = folder.finished()
    found = [part for part in parts if markers[_unit_id(part)].counts.rows]
    return {part.ordinal: folder.path(f"{_unit_id(part)}.parquet") for part in found}


def _unit_id(part: Part) -> str:
    return f"part-{part.ordinal:06d}"


def _contaminated_rows(part: Part, removals: Removals, runs: U64) -> pa.Table:
    tables = [REMOVALS.empty_table()]
    for rows, table in chosen_batches(part, removals.kept_rows(part), ["key", "lang", "sentences"]):
        sentences = table["sentences"].combine_chunks()
        hit = np.flatnonzero(contaminated(hashed_words(sentences.flatten(), offsets_of(sentences)), runs))
        tables.append(removals_without_keeper(CONTAMINATED, part, rows[hit], table.take(pa.array(hit))))
    return pa.concat_tables(tables)
