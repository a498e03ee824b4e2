"""What all ranks must have in common before they train together: config, corpus, code, libraries.

A rank with another config or another copy of the corpus would train without an error, because the gradients
have the same shapes. The ranks therefore compare what they have at every start and restart.
"""

import hashlib
import logging
import platform
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import torch
from pydantic import BaseModel, JsonValue

from cluster import storage
from schemas.errors import BertmillError, ConfigError, CorpusError
from schemas.versions import CODE_VERSION
from trainer.config import TrainConfig
from trainer.data.corpus import Corpus, open_corpus
from trainer.distributed.ranks import Ranks
from trainer.model.config import may_differ

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("cluster", "schemas", "trainer")
_HOST = "host"


def open_common_corpus(config: TrainConfig, ranks: Ranks) -> Corpus:
    """The corpus, after the ranks have found config, code, libraries and corpus to be the same.

    Raises ConfigError on all ranks, with the first rank and field that differ, and CorpusError.
    """
    compare_ranks(
        {
            **{f"config field {name}": value for name, value in common_fields(config)},
            "bertmill version": CODE_VERSION,
            "source code of bertmill": source_digest(),
            "torch version": torch.__version__,
            "CUDA version": torch.version.cuda,
            "Python version": ".".join(platform.python_version_tuple()[:2]),
        },
        ranks,
    )
    corpus, error = None, None
    try:
        corpus = open_corpus(config.data.manifest)
        check_vocabulary(corpus)
    except BertmillError as caught:
        error = caught
    ranks.fail_together(error)
    assert corpus is not None  # noqa: S101 - or an error was raised
    compare_ranks(
        {
            "vocabulary (SHA-256)": corpus.manifest.vocabulary.sha256,
            "corpus manifest (SHA-256)": corpus.digest,
        },
        ranks,
    )
    return corpus


def compare_ranks(facts: Mapping[str, JsonValue], ranks: Ranks) -> None:
    """Compares what all ranks have. All ranks must call it together.

    Raises ConfigError on all of them, with the first rank and the first fact that differs from rank 0.
    """
    first, *others = ranks.gather({**facts, _HOST: socket.gethostname()})
    for rank, theirs in enumerate(others, 1):
        for name in [*first, *(name for name in theirs if name not in first)]:
            if name != _HOST and theirs.get(name) != first.get(name):
                raise ConfigError(
                    f"rank {rank} (host {theirs[_HOST]}) and rank 0 (host {first[_HOST]}) differ in the"
                    f" {name}: {theirs.get(name)!s:.70} and {first.get(name)!s:.70}; start all ranks with the"
                    " same config, corpus and code"
                )


def common_fields(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Dotted field -> value as JSON, of every field that must be the same on all ranks."""
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if may_differ(info):
            continue
        if isinstance(value, BaseModel):
            yield from common_fields(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for number, section in enumerate(value):
                yield from common_fields(section, f"{prefix}{name}.{number}.")
        else:
            yield f"{prefix}{name}", config.model_dump(mode="json", include={name})[name]


def check_vocabulary(corpus: Corpus) -> None:
    """Raises CorpusError when vocab.txt is not the one that the manifest names. Logs a missing one."""
    uri = storage.join(corpus.folder, corpus.manifest.vocabulary.path)
    try:
        digest = hashlib.sha256(storage.read_bytes(uri)).hexdigest()
    except FileNotFoundError:
        logger.warning("%s: no such file; an export of this run will need it", uri)
        return
    if digest != corpus.manifest.vocabulary.sha256:
        raise CorpusError(f"{uri}: is not the vocabulary of {corpus.uri}; its SHA-256 is {digest}")


@cache
def source_digest() -> str:
    """SHA-256 over the source files of the packages that train."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
