"""Writes the corpus's README.md, a Hugging Face dataset card from which ``load_dataset`` reads the sets."""

from typing import Any

import yaml

from pipeline.report.tables import table
from schemas.manifest import Manifest


def dataset_card(manifest: Manifest) -> str:
    """Markdown with YAML front matter. Nothing in it depends on when or where the corpus was built."""
    front = {
        "configs": _configs(manifest),
        "language": list(manifest.languages),
        "task_categories": ["fill-mask"],
        "tags": ["bert", "masked-lm", "pretraining"],
    }
    sets = [
        [entry.name, entry.split, entry.max_seq_length, entry.rows, entry.tokens] for entry in manifest.sets
    ]
    languages = [
        [
            lang,
            counts.documents,
            counts.train_bytes + counts.validation_bytes,
            counts.sequences,
            counts.tokens,
        ]
        for lang, counts in manifest.languages.items()
    ]
    return f"""---
{yaml.safe_dump(front, allow_unicode=True, sort_keys=False)}---

# A BERT pre-training corpus

Masked LM sequences{_objective(manifest)}, built by bertmill {manifest.code_version} from
{manifest.counts.pages.pages_seen:,} pages, of which {manifest.counts.documents:,} became documents.
`manifest.json` describes the sets. The tables in `manifest/` list the shards of each set, with rows, bytes
and SHA-256.

## Columns

| column | meaning |
|---|---|
| `input_ids` | `[CLS] A [SEP] B [SEP]` with the masks applied, without padding |
| `segment_a_length` | positions below it have token type 0, the others 1 |
| `masked_positions`, `masked_ids` | the masked LM targets; writing the ids back gives the text |
| `next_sentence_label` | {_label_text(manifest)} |
| `length` | tokens in `input_ids` |
| `lang` | language code |
| `document_key` | source/language/page/revision of the document of segment A |

## Sets

```
{table(["set", "split", "length", "sequences", "tokens"], sets)}
```

## Languages

```
{table(["language", "documents", "text bytes", "sequences", "tokens"], languages)}
```

## License

The text keeps the license of its source. Wikipedia's is CC BY-SA 4.0 (earlier dumps 3.0), with attribution to
its contributors.
"""


def _objective(manifest: Manifest) -> str:
    names = {"nsp": " with next sentence prediction", "sop": " with sentence order prediction", "none": ""}
    return names[manifest.objective]


def _label_text(manifest: Manifest) -> str:
    convention = manifest.label_convention
    if not convention:
        return "-1: no sentence label"
    return ", ".join(f"{value}: {meaning.replace('_', ' ')}" for value, meaning in sorted(convention.items()))


def _configs(manifest: Manifest) -> list[dict[str, Any]]:
    by_name: dict[str, dict[str, list[str]]] = {}
    for entry in manifest.sets:
        # load_dataset rejects a split without files, such as the held-out split of a very small corpus.
        if entry.shards.count:
            splits = by_name.setdefault(entry.name, {})
            splits.setdefault(entry.split, []).append(f"{entry.shards.prefix}*.parquet")
    return [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": paths} for split, paths in splits.items()],
        }
        for name, splits in by_name.items()
    ]
