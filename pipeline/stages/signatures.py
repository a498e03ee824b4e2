"""Computes and stores band hashes of documents for the near round, so that later builds can reuse them.

They depend only on a document's text, the threshold and the rules. A later build finds them by the hash of
the text, in the parts of the earlier build that have the same pages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.minhash import PERMUTATIONS, rows_per_band, signatures
from pipeline.dedup.near import bands_of
from pipeline.dedup.paragraphs import offsets_of
from pipeline.dedup.shingles import hashed_words, shingles
from pipeline.documents.part import Part
from pipeline.documents.reuse.hashed_file import HashedFile, readable
from pipeline.documents.reuse.page_index import PageRange
from pipeline.documents.reuse.previous_pages import PreviousPages
from pipeline.engine.commit import PartWriter, StageFolder
from pipeline.stages.extract import UnitCounts
from schemas.arrays import U64, Flags
from schemas.errors import CorpusError

BAND_HASHES = pa.schema(
    [
        # A document of the part, unless an earlier round has removed it.
        pa.field("content_hash", pa.binary(16), nullable=False),
        # Its band hashes, 8 bytes each, little-endian. Empty for a document without words.
        pa.field("bands", pa.binary(), nullable=False),
    ]
)
_MOST_PARTS = 16
"""Maximum parts of the earlier build to read for one part. Page id ranges rarely overlap more than three."""


@dataclass(frozen=True)
class SignatureCounts:
    """The number of documents of a part, and how many have band hashes in an earlier build."""

    documents: int = 0
    reused: int = 0


def reused_signatures_text(counts: SignatureCounts) -> str:
    """One line for the log.

    >>> reused_signatures_text(SignatureCounts(documents=2000, reused=1900))
    'reused the signatures of 1,900 of 2,000 documents (95.0%) of the previous build'
    """
    share = 100 * counts.reused / max(1, counts.documents)
    return (
        f"reused the signatures of {counts.reused:,} of {counts.documents:,} documents ({share:.1f}%) "
        "of the previous build"
    )


@dataclass(frozen=True)
class PreviousSignatures:
    """The band hashes of an earlier build, with the same threshold and rules."""

    folder: StageFolder[SignatureCounts]
    pages: PreviousPages

    def of_pages(self, ranges: list[PageRange]) -> "KnownBands":
        """The band hashes of the parts with pages in ``ranges``. Raises CorpusError for damaged files."""
        units = self.pages.units_with(ranges)[:_MOST_PARTS]
        try:
            markers = [self.folder.marker(unit) for unit in units]
        except CorpusError as error:
            raise CorpusError(f"previous: {error}; remove `previous`") from error
        files = [marker.files[0] for marker in markers if marker is not None]
        return KnownBands([_table(HashedFile(self.folder.path(file.path), file.sha256)) for file in files])


@lru_cache(maxsize=_MOST_PARTS)
def _table(file: HashedFile) -> pa.Table:
    with readable(file.uri):
        return file.open().read().cast(BAND_HASHES)


class KnownBands:
    """Band hashes by the hash of the text. ``tables`` have the schema BAND_HASHES."""

    def __init__(self, tables: list[pa.Table]) -> None:
        table = pa.concat_tables([BAND_HASHES.empty_table(), *tables]).combine_chunks()
        self._hashes, self._bands = table["content_hash"].combine_chunks(), table["bands"].combine_chunks()

    def find(self, hashes: pa.Array) -> pa.Array:
        """The column ``bands`` of each document, null where unknown."""
        return self._bands.take(pc.index_in(hashes, value_set=self._hashes))


@dataclass(frozen=True)
class SignatureStage:
    """Computes the band hashes of documents or reuses those of an earlier build, and stores them by part."""

    folder: StageFolder[SignatureCounts]
    threshold: float
    extracted: StageFolder[UnitCounts] | None = None
    previous: PreviousSignatures | None = None

    @staticmethod
    def create(
        work_uri: str,
        inputs: list[str],
        threshold: float,
        extracted: StageFolder[UnitCounts] | None = None,
        previous: PreviousSignatures | None = None,
    ) -> "SignatureStage":
        """The stage of a near round that depends on ``inputs``."""
        folder = StageFolder.create(work_uri, "dedup-signatures", SignatureCounts, threshold, *inputs)
        return SignatureStage(folder, threshold, extracted, previous)

    @contextmanager
    def part(self, part: Part) -> Iterator["PartBands"]:
        """Yields the band hashes of one part, to be requested in document order, and commits them."""
        unit_id = _unit_id(part)
        known = KnownBands([])
        if self.previous is not None and self.extracted is not None:
            marker = self.extracted.marker(unit_id)
            known = self.previous.of_pages(marker.counts.pages if marker is not None else [])
        name = f"{unit_id}.parquet"
        with PartWriter(BAND_HASHES, self.folder.path(name), name) as writer:
            bands = PartBands(self.threshold, known, writer)
            yield bands
            self.folder.commit(unit_id, [writer.finish()], bands.counts())

    def counts(self) -> SignatureCounts:
        """The sums over the committed parts."""
        counts = [marker.counts for marker in self.folder.finished().values()]
        return SignatureCounts(sum(one.documents for one in counts), sum(one.reused for one in counts))


def _unit_id(part: Part) -> str:
    return part.uri.rpartition("/")[2].removesuffix(".parquet")


@dataclass
class PartBands:
    """The band hashes of one part."""

    threshold: float
    known: KnownBands
    writer: PartWriter
    _documents: int = field(default=0, init=False)
    _reused: int = field(default=0, init=False)

    def of(self, table: pa.Table) -> tuple[U64, Flags]:
        """Band hashes [documents, bands], and which documents have words. Others have arbitrary hashes.

        Columns used: content_hash, sentences.
        """
        hashes = table["content_hash"].combine_chunks()
        found = self.known.find(hashes)
        new = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))
        computed = _computed(table["sentences"].combine_chunks().take(pa.array(new)), self.threshold)
        column = pc.replace_with_mask(found, found.is_null(), computed)
        self.writer.write(pa.table([hashes, column], schema=BAND_HASHES))
        self._documents += table.num_rows
        self._reused += table.num_rows - len(new)
        return _matrix(column, self.threshold)

    def counts(self) -> SignatureCounts:
        """The number of documents, and of those with reused band hashes."""
        return SignatureCounts(self._documents, self._reused)


def _computed(sentences: pa.Array, threshold: float) -> pa.Array:
    """The column ``bands`` of documents."""
    words = hashed_words(sentences.flatten(), offsets_of(sentences))
    bands, worded = bands_of(signatures(*shingles(words)), threshold)
    rows = [row.tobytes() if words else b"" for row, words in zip(bands.astype("<u8"), worded, strict=True)]
    return pa.array(rows, pa.binary())


def _matrix(column: pa.Array, threshold: float) -> tuple[U64, Flags]:
    size = 8 * (PERMUTATIONS // rows_per_band(threshold))
    worded = pc.greater(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    raw = b"".join(value or bytes(size) for value in column.to_pylist())
    return np.frombuffer(raw, "<u8").astype(np.uint64).reshape(-1, size // 8), worded
