"""Checks the published documents of a corpus against the manifest, and looks documents up by key."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.processes import map_in_processes
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


def document_problems(corpus: CorpusFiles, cores: int | None = None) -> Iterator[tuple[str, str]]:
    """(place, problem) for files that differ from the manifest, and for counts that do not balance."""
    rows: Counter[tuple[str, str]] = Counter()
    files = corpus.manifest.documents
    check, size = partial(_file_problems, corpus.folder), sum(file.bytes for file in files)
    for file, problems in zip(files, map_in_processes(check, files, size, cores), strict=True):
        rows[file.lang, file.split] += file.rows
        yield from ((corpus.uri(file.path), text) for text in problems)
    if not corpus.manifest.documents:
        return
    for lang, counts in corpus.manifest.languages.items():
        kept = {"train": counts.train_documents, "validation": counts.validation_documents}
        for split, documents in kept.items():
            published = rows[lang, split]
            if published != documents:
                problem = f"{published} {split} documents of {lang} are published, but {documents} are kept"
                yield corpus.manifest_uri, problem


def _file_problems(folder: str, file: DocumentFile) -> list[str]:
    uri, digest, size = storage.join(folder, file.path), hashlib.sha256(), 0
    try:
        with storage.open_stream(uri) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
                size += len(data)
    except FileNotFoundError:
        return ["is missing"]
    if size != file.bytes:
        return [f"has {size} bytes, but the manifest says {file.bytes}"]
    if digest.hexdigest() != file.sha256:
        return ["is not the file in the manifest (sha256 differs)"]
    rows = storage.parquet_file(uri).metadata.num_rows
    return [] if rows == file.rows else [f"has {rows} rows, but the manifest says {file.rows}"]


def find_documents(
    corpus: CorpusFiles, keys: Iterable[str], lang: str | None = None
) -> dict[str, DocumentFacts]:
    """Key -> facts of the published documents. Empty if the corpus has no documents.

    Reads the keys of the files of ``lang`` until it finds all, and the other columns only of row groups with
    a match. Raises CorpusError that names a missing or unreadable file.
    """
    requested = set(keys)
    documents: dict[str, DocumentFacts] = {}
    for file in corpus.manifest.documents:
        if lang in (None, file.lang) and len(documents) < len(requested):
            documents |= {
                facts.key: facts for facts in _facts(corpus.uri(file.path), requested - documents.keys())
            }
    return documents


def _facts(uri: str, keys: set[str]) -> Iterator[DocumentFacts]:
    requested = pa.array(sorted(keys), pa.string())
    try:
        file = storage.parquet_file(uri)
        if not file.schema_arrow.equals(PUBLISHED_DOCUMENTS):
            raise CorpusError(f"{uri}: does not have the columns of documents")
        for group in range(file.num_row_groups):
            if pc.any(pc.is_in(file.read_row_group(group, columns=["key"])["key"], requested)).as_py():
                table = file.read_row_group(group, columns=_FACTS)
                for values in table.filter(pc.is_in(table["key"], requested)).to_pylist():
                    yield DocumentFacts(**values)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the documents are missing") from error
    except (pa.ArrowException, StorageError) as error:
        raise CorpusError(f"{uri}: cannot be read: {error}") from error
