"""Checks the published documents of a corpus against the manifest, and looks documents up by key."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from schemas.columns.published_documents import PUBLISHED_DOCUMENTS
from schemas.errors import CorpusError, StorageError
from schemas.manifest import DocumentFile

_FACTS = ["key", "title", "revision", "timestamp", "url"]


@dataclass(frozen=True)
class DocumentFacts:
    """Facts from the source of a document, None if unknown."""

    key: str
    title: str | None
    revision: int | None
    timestamp: str | None
    url: str | None

    def line(self) -> str:
        """All known facts on one line."""
        revision = None if self.revision is None else f"revision {self.revision}"
        return " · ".join(part for part in (self.title, revision, self.timestamp, self.url) if part)


def document_problems(corpus: CorpusFiles) -> Iterator[tuple[str, str]]:
    """(place, problem) for files that differ from the manifest, and for counts that do not balance."""
    rows: Counter[tuple[str, str]] = Counter()
    for file in corpus.manifest.documents:
        rows[file.lang, file.split] += file.rows
        yield from ((corpus.uri(file.path), text) for text in _file_problems(corpus, file))
    if not corpus.manifest.documents:
        return
    for lang, counts in corpus.manifest.languages.items():
        kept = {"train": counts.train_documents, "validation": counts.validation_documents}
        for split, documents in kept.items():
            published = rows[lang, split]
            if published != documents:
                problem = f"{published} {split} documents of {lang} are published, but {documents} are kept"
                yield corpus.manifest_uri, problem


def _file_problems(corpus: CorpusFiles, file: DocumentFile) -> Iterator[str]:
    digest, size = hashlib.sha256(), 0
    try:
        with storage.open_stream(corpus.uri(file.path)) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
                size += len(data)
    except FileNotFoundError:
        yield "is missing"
        return
    if size != file.bytes:
        yield f"has {size} bytes, but the manifest says {file.bytes}"
    elif digest.hexdigest() != file.sha256:
        yield "is not the file in the manifest (sha256 differs)"
    elif (rows := storage.parquet_file(corpus.uri(file.path)).metadata.num_rows) != file.rows:
        yield f"has {rows} rows, but the manifest says {file.rows}"


def find_documents(
    corpus: CorpusFiles, keys: Iterable[str], lang: str | None = None
) -> dict[str, DocumentFacts]:
    """Key -> facts of the published documents. Empty if the corpus has no documents.

    Reads the keys of the files of ``lang`` until it finds all, and the other columns only of row groups with
    a match. Raises CorpusError that names a missing or unreadable file.
    """
    wanted = set(keys)
    found: dict[str, DocumentFacts] = {}
    for file in corpus.manifest.documents:
        if lang in (None, file.lang) and len(found) < len(wanted):
            found |= {facts.key: facts for facts in _facts(corpus.uri(file.path), wanted - found.keys())}
    return found


def _facts(uri: str, keys: set[str]) -> Iterator[DocumentFacts]:
    wanted = pa.array(sorted(keys), pa.string())
    try:
        file = storage.parquet_file(uri)
        if not file.schema_arrow.equals(PUBLISHED_DOCUMENTS):
            raise CorpusError(f"{uri}: does not have the columns of documents")
        for group in range(file.num_row_groups):
            if pc.any(pc.is_in(file.read_row_group(group, columns=["key"])["key"], wanted)).as_py():
                table = file.read_row_group(group, columns=_FACTS)
                for values in table.filter(pc.is_in(table["key"], wanted)).to_pylist():
                    yield DocumentFacts(**values)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the documents are missing") from error
    except (pa.ArrowException, StorageError) as error:
        raise CorpusError(f"{uri}: cannot be read: {error}") from error
