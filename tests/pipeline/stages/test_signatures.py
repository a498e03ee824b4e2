"""Tests that the stored band hashes of an earlier build equal the computed ones."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dedup.minhash import signatures
from pipeline.dedup.near import bands_of
from pipeline.dedup.shingles import hashed_words, shingles
from pipeline.documents.part import Part
from pipeline.documents.removals import chosen_batches
from pipeline.stages.signatures import PreviousSignatures, SignatureStage
from schemas.arrays import U64
from schemas.errors import CorpusError
from tests.pipeline.documents.reuse.wikis import PROSE, Extracted, articles, extract, write_wiki

THRESHOLD = 0.8
TEXTS = {number: PROSE + f"Page {number} ends here." for number in range(1, 60)} | {60: "。" * 300}


def sign(extracted: Extracted, work: Path, previous: PreviousSignatures | None) -> tuple[SignatureStage, U64]:
    """The stage over all parts, and the band hashes of all documents with words."""
    stage = SignatureStage.create(str(work), [], THRESHOLD, extracted.folder, previous)
    bands = []
    for number, file in enumerate(extracted.files()):
        rows = extracted.folder.finished()[file.stem].files[0].rows
        part = Part(number, str(file), rows, 0)
        with stage.part(part) as part_bands:
            for _, table in chosen_batches(part, np.ones(rows, bool), ["content_hash", "sentences"]):
                found, worded = part_bands.of(table)
                bands.append(found[worded])
    return stage, np.concatenate(bands)


def test_a_reused_signature_is_the_computed_one(tmp_path: Path) -> None:
    earlier = extract(write_wiki(tmp_path / "1", articles(TEXTS)), tmp_path / "work1", min_chars=0)
    stage, _ = sign(earlier, tmp_path / "signed1", None)
    changed = TEXTS | {3: PROSE + "Another end.", 61: PROSE + "A new page."}
    later = extract(write_wiki(tmp_path / "2", articles(changed)), tmp_path / "work2", min_chars=0)
    reusing, bands = sign(later, tmp_path / "reusing", PreviousSignatures(stage.folder, earlier.pages))
    plain, computed = sign(later, tmp_path / "plain", None)
    np.testing.assert_array_equal(bands, computed)
    assert (reusing.counts().documents, reusing.counts().reused) == (61, 59)
    for unit, marker in plain.folder.finished().items():
        assert reusing.folder.finished()[unit].files == marker.files


def test_a_damaged_file_of_signatures_is_one_line(tmp_path: Path) -> None:
    path = write_wiki(tmp_path / "1", articles(TEXTS))
    earlier = extract(path, tmp_path / "work1")
    stage, _ = sign(earlier, tmp_path / "signed", None)
    (file,) = Path(stage.folder.uri).glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    (marker,) = Path(stage.folder.uri).glob("*.done.json")
    whole = marker.read_text()
    marker.write_text(whole[:-20])
    with pytest.raises(CorpusError, match=rf"^previous: .*{marker.name}: not a marker.*remove `previous`$"):
        sign(earlier, tmp_path / "again", PreviousSignatures(stage.folder, earlier.pages))
    marker.write_text(whole)
    with pytest.raises(CorpusError, match=rf"^previous: .*{file.name}: damaged.*remove `previous`"):
        sign(earlier, tmp_path / "again", PreviousSignatures(stage.folder, earlier.pages))


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1), st.data())
def test_a_signature_does_not_depend_on_where_sentences_end(words: list[str], data: st.DataObject) -> None:
    """So the hash of the text, with a space between sentences, identifies the signature."""
    ends = sorted(data.draw(st.sets(st.integers(1, len(words)))) | {len(words)})
    cut = [" ".join(words[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    whole, parts = (
        bands_of(
            signatures(*shingles(hashed_words(pa.array(sentences), np.array([0, len(sentences)])))), THRESHOLD
        )
        for sentences in ([" ".join(words)], cut)
    )
    np.testing.assert_array_equal(whole[0], parts[0])
    assert whole[1] == parts[1]
