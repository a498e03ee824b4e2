"""Records what cleaning depends on besides the page and its wiki, and band hashes besides the text.

This includes their code and data, the Python version, and the config. If the records of two builds are equal,
the same page gives the same text and the same text gives the same band hashes, even across versions.
"""

import hashlib
import platform
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

import pipeline
from cluster import storage
from pipeline.config import BuildConfig
from pipeline.dedup.minhash import rows_per_band
from pipeline.plugins import plugin_versions
from schemas.columns.documents import DOCUMENTS_VERSION

# Everything in the package that `pipeline.documents.cleaning` imports, except classes without code. Also the
# module that decodes a page's text, since digests cover the text as it is stored.
RULES = (
    "data",
    "dedup/exact.py",
    "documents/cleaning.py",
    "documents/filters.py",
    "documents/skip_rules.py",
    "sources/mediawiki/page.py",
    "text",
    "wikitext",
)
# Everything that `pipeline.dedup.shingles` and `pipeline.dedup.minhash` import.
SIGNATURE_RULES = (
    "dedup/minhash.py",
    "dedup/shingles.py",
    "wordpiece/basic_tokenization.py",
    "wordpiece/character_table.py",
    "wordpiece/composition.py",
    "../schemas/arrays.py",
    "../schemas/randomness.py",
    "../schemas/scripts.py",
)
# Fields of the config that only select what is read. Lookups in a template table are compared for each page.
_OF_READING = {"unit_bytes", "learn_templates", "template_rules"}


def cleaning_record(config: BuildConfig) -> dict[str, Any]:
    """Everything that the text of a page depends on, as JSON: code, Python, settings, rules and plug-ins.

    Raises FileNotFoundError when the file of template rules is missing.
    """
    rules, readers = config.extraction.template_rules, {source.kind for source in config.sources}
    plugins = {name: sha256 for name, sha256 in plugin_versions(config).items() if name not in readers}
    return {
        "documents_version": DOCUMENTS_VERSION,
        "code": rules_sha256(RULES),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "unicode": unicodedata.unidata_version,
        "extraction": config.extraction.model_dump(mode="json", exclude=_OF_READING),
        "template_rules": None if rules is None else hashlib.sha256(storage.read_bytes(rules)).hexdigest(),
        "plugins": plugins,
    }


def signature_record(threshold: float) -> dict[str, Any]:
    """Everything that the band hashes of a text depend on, as JSON values."""
    return {
        "rows_per_band": rows_per_band(threshold),
        "code": rules_sha256(SIGNATURE_RULES),
        # It defines what a word is.
        "tokenizers": tokenizers.__version__,
        "unicode": unicodedata.unidata_version,
    }


@cache
def rules_sha256(names: tuple[str, ...]) -> str:
    """SHA-256 of the source and data files at or below ``names`` in the package, by name and content."""
    root = Path(pipeline.__file__).resolve().parent
    digest = hashlib.sha256()
    for path in _files(root, names):
        for part in (path.relative_to(root.parent).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _files(root: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        path = (root / name).resolve()
        found = [path] if path.is_file() else path.rglob("*")
        yield from sorted(file for file in found if file.is_file() and file.suffix != ".pyc")
