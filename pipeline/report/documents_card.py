"""Writes the README.md of the documents dataset, from which ``load_dataset`` reads a config per language."""

from typing import Any

import yaml

from pipeline.report.tables import table
from schemas.manifest import Manifest

_WIKIPEDIA = {"wikimedia", "wikipedia_parquet"}
_WIKIPEDIA_LICENSE = """\
The texts of Wikipedia are available under CC BY-SA 4.0 (texts of before June 2023: 3.0) and, for the most
part, the GFDL (https://dumps.wikimedia.org/legal.html). Their authors are the contributors of each page:
`url` leads to the page, whose history names them. The texts were changed: markup, tables, references and
repeated passages are removed. If you share them, name the source, link the license, state that they were
changed, and keep the license."""


def documents_card(manifest: Manifest) -> str:
    """Markdown with YAML front matter. Nothing in it depends on when or where the corpus was built."""
    rows: dict[str, dict[str, int]] = {}
    for file in manifest.documents:
        splits = rows.setdefault(file.lang, {"train": 0, "validation": 0})
        splits[file.split] += file.rows
    listed = [[lang, counts["train"], counts["validation"]] for lang, counts in rows.items()]
    wikipedia_only = all(source["kind"] in _WIKIPEDIA for source in manifest.config["sources"])
    front = {
        "configs": _configs(manifest),
        "language": list(rows),
        "license": ["cc-by-sa-4.0", "gfdl"] if wikipedia_only else "other",
        "task_categories": ["text-generation", "fill-mask"],
        "size_categories": [_size_category(sum(file.rows for file in manifest.documents))],
    }
    example = next(iter(rows), "en")
    return f"""---
{yaml.safe_dump(front, allow_unicode=True, sort_keys=False)}---

# Documents of a BERT pre-training corpus

The cleaned texts that the training sequences come from, after deduplication and all filters, written by
bertmill {manifest.code_version}. Each language is a config:

```python
from datasets import load_dataset

documents = load_dataset("path/to/documents", "{example}")
```

The split `validation` has the documents that training never sees. `manifest.json` of the corpus names every
file with its rows, bytes and SHA-256.

## Columns

| column | meaning |
|---|---|
| `id` | id of the page, or of the row in its source |
| `revision` | revision of the page (of a published extract without revisions, its date) |
| `timestamp` | when the revision was made |
| `url` | address of the page |
| `title` | title |
| `lang` | language code |
| `text` | paragraphs as cleaned, with a blank line between them |
| `key` | the `document_key` of the training sequences |

A value that the source does not have is null.

## Languages

```
{table(["language", "train", "validation"], listed)}
```

## License and attribution

{_license(wikipedia_only)}
"""


def _license(wikipedia_only: bool) -> str:
    if not wikipedia_only:
        return f"Each text keeps the license of its source. {_WIKIPEDIA_LICENSE}"
    return _WIKIPEDIA_LICENSE


def _configs(manifest: Manifest) -> list[dict[str, Any]]:
    by_language: dict[str, dict[str, list[str]]] = {}
    for file in manifest.documents:
        splits = by_language.setdefault(file.lang, {})
        splits.setdefault(file.split, []).append(file.path.removeprefix("documents/"))
    return [
        {
            "config_name": lang,
            "data_files": [{"split": split, "path": paths} for split, paths in splits.items()],
        }
        for lang, splits in by_language.items()
    ]


def _size_category(rows: int) -> str:
    """The size category of the Hub (https://huggingface.co/docs/hub/datasets-cards).

    >>> _size_category(999), _size_category(12_000), _size_category(70_000_000)
    ('n<1K', '10K<n<100K', '10M<n<100M')
    """
    names = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
    power = len(str(rows)) - 1
    return "n<1K" if power < 3 else f"{names[power - 3]}<n<{names[power - 2]}"
