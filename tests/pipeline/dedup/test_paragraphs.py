"""Tests that repeated paragraphs count once for each document and are cut."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dedup.exact import content_hash
from pipeline.dedup.paragraphs import (
    PARAGRAPHS,
    merge_paragraph_counts,
    paragraph_counts,
    paragraph_hashes,
    without_paragraphs,
)

TEXTS = [
    ["This page is about a river in the north."],
    ["This page is about", "a river in the south."],
    ["See also"],
    ["External links are", "not kept here any more."],
    [],
]
DOCUMENTS = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8)


def documents(numbers: Any) -> pa.Table:
    sentences = [[sentence for number in document for sentence in TEXTS[number]] for document in numbers]
    sizes = [[len(TEXTS[number]) for number in document] for document in numbers]
    return pa.table(
        {
            "paragraph_sentences": pa.array(sizes, pa.list_(pa.int32())),
            "text_bytes": pa.array([len("".join(document).encode()) for document in sentences], pa.int64()),
            "content_hash": pa.array(
                [content_hash(" ".join(document).encode()) for document in sentences], pa.binary(16)
            ),
            "sentences": pa.array(sentences, pa.list_(pa.string())),
            # The space before the second sentence of a paragraph is cut with the paragraph.
            "spaced": pa.array(
                [[bool(n) for size in row for n in range(size)] for row in sizes], pa.list_(pa.bool_())
            ),
        }
    )


HASH = {number: int(paragraph_hashes(documents([[number]]))[0]) for number in range(5)}


def test_long_paragraphs_have_distinct_hashes() -> None:
    assert HASH[2] == HASH[4] == 0
    assert len({HASH[0], HASH[1], HASH[3], 0}) == 4


@given(DOCUMENTS, st.integers(0, 8))
def test_documents_are_counted_once_for_each_paragraph(numbers: Any, at: int) -> None:
    parts = [paragraph_counts(documents(part)) for part in (numbers[:at], numbers[at:])]
    merged = merge_paragraph_counts(pa.concat_tables([PARAGRAPHS.empty_table(), *parts]))
    expected = Counter(HASH[number] for document in numbers for number in set(document) if HASH[number])
    assert dict(zip(*merged.to_pydict().values(), strict=True)) == expected


@given(DOCUMENTS, st.sets(st.sampled_from([0, 1, 3])))
def test_cutting_leaves_the_documents_of_the_other_paragraphs(numbers: Any, cut: set[int]) -> None:
    repeated = np.array(sorted(HASH[number] for number in cut), np.uint64)
    left = documents([[number for number in document if number not in cut] for document in numbers])
    assert without_paragraphs(documents(numbers), repeated).to_pylist() == left.to_pylist()
