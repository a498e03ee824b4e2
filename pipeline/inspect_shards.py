"""``bertmill inspect CORPUS``: rows of a shard as text, with what is masked and what stands in its place."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from cluster import storage
from pipeline.corpus_files import CorpusFiles
from schemas.errors import CorpusError
from schemas.shards import SHARD
from schemas.vocabulary import CONTINUATION, MASK, SPECIAL_TOKENS

LEGEND = "⟨word⟩ hidden by [MASK] · ⟨word→other⟩ a random piece instead · ⟨=word⟩ a target left as it is"


def inspect_rows(
    uri: str, shard: str | None = None, start: int = 0, rows: int = 5, lang: str | None = None
) -> Iterator[str]:
    """Lines that show ``rows`` rows from row ``start`` on, of one language if ``lang`` is given.

    ``shard`` is a path as the manifest names it; without it the first shard that has such rows.
    Raises CorpusError when the manifest does not name the shard, or the file is not such a shard.
    """
    corpus = CorpusFiles.open(uri)
    entry = _chosen_shard(corpus, shard, lang)
    yield f"{corpus.uri(entry['path'])}: {entry['rows']:,} rows, {entry['tokens']:,} tokens"
    yield LEGEND
    for number, row in _rows(corpus, entry, start, rows, lang):
        yield ""
        yield from render_row(row, number, corpus.pieces, corpus.manifest["label_convention"])


def _chosen_shard(corpus: CorpusFiles, path: str | None, lang: str | None) -> dict[str, Any]:
    shards = [shard for entry in corpus.manifest["sets"] for shard in entry["shards"]]
    for entry in shards:
        if path is None and (lang is None or lang in entry["languages"]):
            return dict(entry)
        if path is not None and entry["path"] == path:
            return dict(entry)
    what = f"no shard with rows of language {lang}" if path is None else f"no shard {path}"
    raise CorpusError(f"{corpus.manifest_uri}: {what}")


def _rows(
    corpus: CorpusFiles, entry: dict[str, Any], start: int, rows: int, lang: str | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Row numbers and rows, read a row group at a time."""
    uri = corpus.uri(entry["path"])
    try:
        file = storage.parquet_file(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the shard is missing") from error
    if not file.schema_arrow.equals(SHARD):
        raise CorpusError(f"{uri}: has other columns than a shard")
    left, first = rows, 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if first + count > start and left > 0:
            try:
                table = file.read_row_group(group)
            except (pa.ArrowException, OSError) as error:
                raise CorpusError(f"{uri}: row group {group} cannot be read: {error}") from error
            for number, row in enumerate(table.to_pylist(), start=first):
                if number >= start and left > 0 and lang in (None, row["lang"]):
                    left -= 1
                    yield number, row
        first += count


def render_row(row: dict[str, Any], number: int, pieces: list[str], labels: dict[str, str]) -> Iterator[str]:
    """One row as a head line and its segments as text."""
    label = row["next_sentence_label"]
    meaning = labels.get(str(label))
    facts = [f"row {number}", row["lang"], f"{row['length']} tokens", f"{len(row['masked_ids'])} masked"]
    if meaning is not None:
        facts.append(f"label {label} {meaning}")
    yield " · ".join([*facts, row["document_key"]])
    words = _marked(row, pieces)
    first = row["segment_a_length"]
    yield f"  A  {_joined(words[:first])}"
    if first < row["length"]:
        yield f"  B  {_joined(words[first:])}"


def _marked(row: dict[str, Any], pieces: list[str]) -> list[str]:
    """The pieces of the row, targets in brackets; a continuation keeps its ## in front of the bracket."""
    words = [pieces[index] for index in row["input_ids"]]
    for position, target in zip(row["masked_positions"], row["masked_ids"], strict=True):
        shown, label = words[position], pieces[target]
        joined = CONTINUATION if label.startswith(CONTINUATION) else ""
        text = label.removeprefix(CONTINUATION)
        if shown == label:
            mark = f"⟨={text}⟩"
        else:
            mark = f"⟨{text}⟩" if shown == MASK else f"⟨{text}→{shown.removeprefix(CONTINUATION)}⟩"
        words[position] = joined + mark
    return words


def _joined(words: list[str]) -> str:
    text = ""
    for before, word in zip(["", *words], words, strict=False):
        # A segment that was cut may begin inside a word; its ## is left to show that.
        joined = word.startswith(CONTINUATION) and before not in ("", *SPECIAL_TOKENS)
        text += word.removeprefix(CONTINUATION) if joined else f" {word}"
    return text.strip()
