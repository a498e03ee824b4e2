"""``bertmill inspect CORPUS``: shows rows of a shard as text with the masked LM targets and replacements."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.documents import find_documents
from schemas.columns.shards import SHARD
from schemas.errors import CorpusError
from schemas.shard_tables import Shard, ShardTable
from schemas.vocabulary import CONTINUATION, MASK, SPECIAL_TOKENS

_THREADS = 16
LEGEND = "⟨word⟩ replaced by [MASK] · ⟨word→other⟩ replaced by a random token · ⟨=word⟩ an unchanged target"


@dataclass(frozen=True)
class ShardRow:
    """One row of a shard. The fields are the columns of schemas.columns.shards.SHARD."""

    input_ids: list[int]
    segment_a_length: int
    masked_positions: list[int]
    masked_ids: list[int]
    next_sentence_label: int
    length: int
    lang: str
    document_key: str


def inspect_rows(
    uri: str, shard: str | None = None, start: int = 0, rows: int = 5, lang: str | None = None
) -> Iterator[str]:
    """Lines that show ``rows`` rows from row ``start`` on, only those of ``lang`` if given.

    Title, revision and URL of a document follow if the corpus has its documents. ``shard`` is a path in the
    manifest, by default the first shard with such rows. Raises CorpusError if the manifest does not name the
    shard, or if the file is not that shard.
    """
    corpus = CorpusFiles.open(uri)
    chosen = _chosen_shard(corpus, shard, lang)
    yield f"{corpus.uri(chosen.path)}: {chosen.rows:,} rows, {chosen.tokens:,} tokens"
    yield LEGEND
    shown = list(_rows(corpus, chosen, start, rows, lang))
    documents = find_documents(corpus, (row.document_key for _, row in shown), lang)
    for number, row in shown:
        yield ""
        headline, *segments = render_row(row, number, corpus.subwords, corpus.manifest.label_convention)
        yield headline
        if row.document_key in documents:
            yield f"  {documents[row.document_key].line()}"
        yield from segments


def _chosen_shard(corpus: CorpusFiles, path: str | None, lang: str | None) -> Shard:
    for entry in corpus.manifest.sets:
        if path is not None:
            index = corpus.shards(entry).find(path) if path.startswith(entry.shards.prefix) else None
        elif lang is not None:
            index = _first_with(corpus, corpus.shards(entry), lang) if lang in entry.languages else None
        else:
            index = 0 if entry.shards.count else None
        if index is not None:
            return corpus.shards(entry)[index]
    problem = f"no shard with rows of language {lang}" if path is None else f"no shard {path}"
    raise CorpusError(f"{corpus.manifest_uri}: {problem}")


def _first_with(corpus: CorpusFiles, shards: ShardTable, lang: str) -> int | None:
    """The index of the first shard with rows of ``lang``. Reads the languages of several shards at a time."""

    def has_rows(index: int) -> bool:
        shard = shards[index]
        try:
            languages = _open(corpus, shard).read(["lang"], use_threads=False)["lang"]
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{corpus.uri(shard.path)}: cannot be read: {error}") from error
        return lang in languages.unique().to_pylist()

    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(shards), _THREADS):
            indices = range(start, min(start + _THREADS, len(shards)))
            for index, found in zip(indices, pool.map(has_rows, indices), strict=True):
                if found:
                    return index
    return None


def _open(corpus: CorpusFiles, shard: Shard) -> pq.ParquetFile:
    """Raises CorpusError if the file is missing or is not a shard."""
    uri = corpus.uri(shard.path)
    try:
        file = storage.parquet_file(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the shard is missing") from error
    if not file.schema_arrow.equals(SHARD):
        raise CorpusError(f"{uri}: does not have the columns of a shard")
    return file


def _rows(
    corpus: CorpusFiles, shard: Shard, start: int, rows: int, lang: str | None
) -> Iterator[tuple[int, ShardRow]]:
    """Row numbers and rows, read a row group at a time."""
    uri, file = corpus.uri(shard.path), _open(corpus, shard)
    left, first = rows, 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if first + count > start and left > 0:
            try:
                table = file.read_row_group(group)
            except (pa.ArrowException, OSError) as error:
                raise CorpusError(f"{uri}: row group {group} cannot be read: {error}") from error
            for number, values in enumerate(table.to_pylist(), start=first):
                row = ShardRow(**values)
                if number >= start and left > 0 and lang in (None, row.lang):
                    left -= 1
                    yield number, row
        first += count


def render_row(row: ShardRow, number: int, subwords: list[str], labels: dict[str, str]) -> Iterator[str]:
    """One row as a headline and the text of its segments."""
    meaning = labels.get(str(row.next_sentence_label))
    facts = [f"row {number}", row.lang, f"{row.length} tokens", f"{len(row.masked_ids)} masked"]
    if meaning is not None:
        facts.append(f"label {row.next_sentence_label} {meaning}")
    yield " · ".join([*facts, row.document_key])
    tokens = _marked(row, subwords)
    yield f"  A  {_joined(tokens[: row.segment_a_length])}"
    if row.segment_a_length < row.length:
        yield f"  B  {_joined(tokens[row.segment_a_length :])}"


def _marked(row: ShardRow, subwords: list[str]) -> list[str]:
    """The tokens of the row with targets in brackets. The ## of a target is in front of its bracket."""
    tokens = [subwords[index] for index in row.input_ids]
    for position, target in zip(row.masked_positions, row.masked_ids, strict=True):
        token, label = tokens[position], subwords[target]
        joined = CONTINUATION if label.startswith(CONTINUATION) else ""
        text = label.removeprefix(CONTINUATION)
        if token == label:
            mark = f"⟨={text}⟩"
        else:
            mark = f"⟨{text}⟩" if token == MASK else f"⟨{text}→{token.removeprefix(CONTINUATION)}⟩"
        tokens[position] = joined + mark
    return tokens


def _joined(tokens: list[str]) -> str:
    text = ""
    for before, token in zip(["", *tokens], tokens, strict=False):
        # A segment that was cut may start inside a word, and keeps its ## to show that.
        joined = token.startswith(CONTINUATION) and before not in ("", *SPECIAL_TOKENS)
        text += token.removeprefix(CONTINUATION) if joined else f" {token}"
    return text.strip()
