"""The reference pages of the file formats, from the Arrow schemas and the JSON Schema of the manifest."""

import inspect
import json
import re
from collections.abc import Iterator
from types import ModuleType

import model_tables
import pyarrow as pa

from schemas import labels, manifest
from schemas.columns import documents, published_documents, shard_table, shards

_COMMENTED_FIELD = re.compile(r'((?:^ +#[^\n]*\n)*)^ +pa\.field\("(\w+)"', re.M)


def pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each page."""
    yield "shards", "\n".join(_columns_page())
    yield "manifest", "\n".join(_manifest_page())


def _columns_page() -> Iterator[str]:
    yield from ("# Shards and documents", "")
    yield "Both are Parquet files. `datasets.load_dataset` and any Parquet viewer open them as they are."
    yield from ("", "## Columns of a shard", "")
    yield f"A row is one sequence. A row group holds about {shards.ROW_GROUP_ROWS:,} rows."
    yield from ("", *_columns(shards, shards.SHARD))
    yield from ("", "Write `masked_ids` back at `masked_positions` to get the original text. "
                "This is how dynamic masking draws new masks from the same shards.", "")  # fmt: skip
    yield from ("### Labels", "", "| objective | label | meaning |", "|---|---|---|")
    for objective, meanings in labels.LABEL_CONVENTIONS.items():
        rows = meanings or {str(labels.NO_LABEL): "no sentence label"}
        for label, meaning in rows.items():
            yield f"| `{objective}` | {label} | {meaning.replace('_', ' ')} |"
    yield from ("", "## Columns of the documents' dataset", "")
    yield "With `publish.documents`, a build writes its kept documents to `OUTPUT/documents/`, by language."
    yield from ("", *_columns(published_documents, published_documents.PUBLISHED_DOCUMENTS))
    yield from ("", "## Columns of a documents part", "")
    yield "The extract stage writes one part per work unit below `OUTPUT/work/`. Later stages read it."
    yield from ("", *_columns(documents, documents.DOCUMENTS), "")


def _columns(module: ModuleType, schema: pa.Schema) -> Iterator[str]:
    """A row for each field. Its meaning is the comment above it in the source."""
    comments = {name: " ".join(re.findall(r"# ?([^\n]*)", text))
                for text, name in _COMMENTED_FIELD.findall(inspect.getsource(module))}  # fmt: skip
    yield from ("| column | type | meaning |", "|---|---|---|")
    for field in schema:
        kind = str(field.type).replace("<", "&lt;").replace("item: ", "").replace("element: ", "")
        yield f"| `{field.name}` | {kind} | {comments.get(field.name, '')} |"


def _manifest_page() -> Iterator[str]:
    yield from ("# Manifest", "")
    yield (
        f"`{manifest.MANIFEST_NAME}` names every file of a corpus. It is the last file that a build writes. "
        "Readers follow it and never list a folder. It holds no time, host or path outside the corpus, so "
        f"equal builds write equal manifests. This page describes version {manifest.MANIFEST_VERSION}."
    )
    yield from ("", "## Columns of a shard table", "")
    yield "A set names its shards in a Parquet file, `sets.N.shards.path`."
    yield from ("", *_columns(shard_table, shard_table.SHARD_TABLE))
    yield from ("", *model_tables.sections(manifest.Manifest))
    text = json.dumps(manifest.manifest_schema(), indent=1)
    yield from ("## JSON Schema", "", '??? note "The whole schema"', "", "    ```json")
    yield from (f"    {line}" for line in text.splitlines())
    yield from ("    ```", "")
