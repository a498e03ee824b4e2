"""The corpus' README.md: a Hugging Face dataset card, with which ``load_dataset`` finds the sets."""

from typing import Any

import yaml

from pipeline.report.tables import table


def dataset_card(manifest: dict[str, Any]) -> str:
    """Markdown with YAML front matter; nothing in it depends on when or where the corpus was built."""
    front = {
        "configs": _configs(manifest),
        "language": list(manifest["languages"]),
        "task_categories": ["fill-mask"],
        "tags": ["bert", "masked-lm", "pretraining"],
    }
    pages = manifest["counts"]["pages"]
    sets = [
        [entry["name"], entry["split"], entry["max_seq_length"], entry["rows"], entry["tokens"]]
        for entry in manifest["sets"]
    ]
    languages = [
        [
            lang,
            entry["documents"],
            entry["train_bytes"] + entry["validation_bytes"],
            entry["instances"],
            entry["tokens"],
        ]
        for lang, entry in manifest["languages"].items()
    ]
    return f"""---
{yaml.safe_dump(front, allow_unicode=True, sort_keys=False)}---

# A BERT pre-training corpus

Masked LM instances{_objective(manifest)}, made by bertmill {manifest["code_version"]} from
{pages["pages_seen"]:,} pages, of which {manifest["counts"]["documents"]:,} became documents.
`manifest.json` names every shard with its rows, bytes and SHA-256; a reader follows it, not a listing.

## Columns

| column | meaning |
|---|---|
| `input_ids` | `[CLS] A [SEP] B [SEP]` with the masks applied, without padding |
| `segment_a_length` | positions below it have token type 0, the others 1 |
| `masked_positions`, `masked_ids` | the masked LM targets; writing the ids back gives the text |
| `next_sentence_label` | {_label_text(manifest)} |
| `length` | tokens in `input_ids` |
| `lang` | language code |
| `document_key` | source/language/page/revision that segment A is from |

## Sets

```
{table(["set", "split", "length", "instances", "tokens"], sets)}
```

## Languages

```
{table(["language", "documents", "text bytes", "instances", "tokens"], languages)}
```

## Licence

The text keeps the licence of its source: Wikipedia's is CC BY-SA 4.0 (earlier dumps 3.0), and attribution
goes to its contributors.
"""


def _objective(manifest: dict[str, Any]) -> str:
    names = {"nsp": " with next sentence prediction", "sop": " with sentence order prediction", "none": ""}
    return names[manifest["objective"]]


def _label_text(manifest: dict[str, Any]) -> str:
    convention = manifest["label_convention"]
    if not convention:
        return "-1: there is no sentence label"
    return ", ".join(f"{value}: {meaning.replace('_', ' ')}" for value, meaning in sorted(convention.items()))


def _configs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    by_name: dict[str, dict[str, list[str]]] = {}
    for entry in manifest["sets"]:
        splits = by_name.setdefault(entry["name"], {})
        splits.setdefault(entry["split"], []).extend(shard["path"] for shard in entry["shards"])
    return [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": paths} for split, paths in splits.items()],
        }
        for name, splits in by_name.items()
    ]
