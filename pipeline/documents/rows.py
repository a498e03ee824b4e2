"""Collects rows of documents into batches, from new texts and from texts that an earlier build cleaned."""

from dataclasses import dataclass

import pyarrow as pa

from pipeline.dedup.exact import content_hash
from pipeline.documents.cleaning import Cleaned
from pipeline.sources.documents import RawDocument
from schemas.columns.documents import DOCUMENTS

BATCH_ROWS = 1024
BATCH_BYTES = 4 << 20

TEXT_COLUMNS = ("sentences", "paragraph_sentences", "spaced", "text_bytes", "content_hash")
"""The columns that depend only on the text of a document."""
_PAGE_COLUMNS = tuple(name for name in DOCUMENTS.names if name not in TEXT_COLUMNS)


@dataclass(frozen=True)
class StoredText:
    """The text of a document in an earlier build: a row of a batch with TEXT_COLUMNS."""

    batch: pa.RecordBatch
    row: int
    text_bytes: int
    sentences: int


def _storable(text: str) -> str:
    """The text with lone surrogates escaped as in JSON. Names of files and rows may contain some."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class DocumentRows:
    """The rows of the next batch, and the number of rows so far."""

    def __init__(self) -> None:
        self.total = 0
        self._clear()

    def _clear(self) -> None:
        self._pages: dict[str, list[object]] = {name: [] for name in _PAGE_COLUMNS}
        self._new: dict[str, list[object]] = {name: [] for name in TEXT_COLUMNS}
        self._stored: dict[int, tuple[pa.RecordBatch, list[int]]] = {}
        self._places: list[tuple[int, int]] = []
        """For each row, the id of its stored batch (0 for a new text) and its index among the rows there."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def full(self) -> bool:
        """Whether the caller should take the batch."""
        return len(self) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, source: str, cleaned: Cleaned) -> None:
        """Adds a new text."""
        paragraphs = cleaned.paragraphs
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
        text = " ".join(sentences).encode()
        text_bytes = len(text) - max(0, len(sentences) - 1)
        self._places.append((0, len(self._new["sentences"])))
        values = {
            "sentences": sentences,
            "paragraph_sentences": [len(paragraph) for paragraph in paragraphs],
            "spaced": cleaned.spaced,
            "text_bytes": text_bytes,
            "content_hash": content_hash(text),
        }
        for name, value in values.items():
            self._new[name].append(value)
        self._add_page(source, cleaned.page, text_bytes)

    def add_stored(self, source: str, page: RawDocument, text: StoredText) -> None:
        """Adds a page whose text is stored."""
        _, rows = self._stored.setdefault(id(text.batch), (text.batch, []))
        self._places.append((id(text.batch), len(rows)))
        rows.append(text.row)
        self._add_page(source, page, text.text_bytes)

    def _add_page(self, source: str, page: RawDocument, text_bytes: int) -> None:
        values = {
            "key": f"{source}/{page.lang}/{page.page_id}/{page.revision}",
            "source": source,
            "lang": page.lang,
            "page_id": page.page_id,
            "revision": page.revision,
            "title": page.title,
            "source_id": page.source_id,
            "timestamp": page.timestamp,
            "url": page.url,
        }
        for name, value in values.items():
            self._pages[name].append(_storable(value) if isinstance(value, str) else value)
        self._bytes += text_bytes
        self.total += 1

    def take(self) -> pa.RecordBatch:
        """The batch. The next one starts empty."""
        texts = pa.schema([DOCUMENTS.field(name) for name in TEXT_COLUMNS])
        new = pa.RecordBatch.from_pydict(self._new, schema=texts)
        columns = dict(
            zip(TEXT_COLUMNS, self._with_stored(new) if self._stored else new.columns, strict=True)
        )
        for name, values in self._pages.items():
            columns[name] = pa.array(values, DOCUMENTS.field(name).type)
        self._clear()
        return pa.RecordBatch.from_arrays([columns[name] for name in DOCUMENTS.names], schema=DOCUMENTS)

    def _with_stored(self, new: pa.RecordBatch) -> list[pa.Array]:
        """TEXT_COLUMNS of all rows in their order."""
        starts, pieces, start = {0: 0}, [new], new.num_rows
        for number, (batch, rows) in self._stored.items():
            starts[number] = start
            pieces.append(batch.take(pa.array(rows)))
            start += len(rows)
        order = pa.array([starts[number] + place for number, place in self._places])
        return [pa.concat_arrays([piece[name] for piece in pieces]).take(order) for name in TEXT_COLUMNS]
