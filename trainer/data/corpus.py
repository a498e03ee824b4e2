"""The corpus of a training: its manifest, and the checks before the first step."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from cluster import storage
from schemas.errors import ConfigError, CorpusError
from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import Manifest, parse_manifest
from trainer.checkpoint.manifest import TOKENIZER_FILES
from trainer.data.order import SampleOrder
from trainer.data.row_groups import RowLimits
from trainer.data.rows import PassShards, ShardPlace, open_shard


@dataclass(frozen=True)
class Corpus:
    """A parsed manifest, and the shards of its sets."""

    uri: str
    """Of the manifest."""
    manifest: Manifest
    digest: str
    """SHA-256 of the manifest's bytes."""

    @cached_property
    def _shards(self) -> list[PassShards]:
        """The shards of each set. All readers of this corpus share the tables."""
        return [PassShards(self.folder, entry) for entry in self.manifest.sets]

    @property
    def objective(self) -> str:
        """nsp, sop or none."""
        return self.manifest.objective

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return self.manifest.vocabulary.size

    @property
    def special_ids(self) -> dict[str, int]:
        """Special token -> id."""
        return self.manifest.vocabulary.special_ids

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes, sorted. The language ids of micro-batches are indices into it."""
        return tuple(sorted(self.manifest.languages))

    @property
    def folder(self) -> str:
        """The folder that shard paths are relative to."""
        return self.uri.rpartition("/")[0] or "."

    def tokenizer_files(self) -> dict[str, bytes]:
        """The files of its tokenizer, by name, as far as they exist."""
        folder = storage.join(self.folder, self.manifest.vocabulary.path).rpartition("/")[0]
        uris = {name: storage.join(folder, name) for name in TOKENIZER_FILES}
        return {name: storage.read_bytes(uri) for name, uri in uris.items() if storage.exists(uri)}

    def lengths(self, split: str = "train") -> list[int]:
        """The sequence lengths of which ``split`` has rows, ascending."""
        sets = self.manifest.sets
        return sorted({entry.max_seq_length for entry in sets if entry.split == split and entry.rows})

    def passes(self, max_seq_length: int, split: str = "train") -> list[PassShards]:
        """The shards of each pass over one length. Raises CorpusError when a pass is missing."""
        chosen = [
            shards
            for shards in self._shards
            if shards.entry.split == split
            and shards.entry.max_seq_length == max_seq_length
            and shards.entry.rows
        ]
        chosen.sort(key=lambda shards: shards.entry.pass_number)
        numbers = [shards.entry.pass_number for shards in chosen]
        if numbers != list(range(len(numbers))):
            raise CorpusError(
                f"{self.uri}: length {max_seq_length} has the passes {numbers}, not 0, 1, 2 ..."
            )
        return chosen

    def order(self, max_seq_length: int, seed: int, window: int = 1, split: str = "train") -> SampleOrder:
        """The training order of one length."""
        return SampleOrder([shards.rows for shards in self.passes(max_seq_length, split)], seed, window)

    def limits(self, max_seq_length: int) -> RowLimits:
        """The limits that every row of this length must keep."""
        special = self.special_ids
        return RowLimits(
            vocab_size=self.vocab_size,
            max_seq_length=max_seq_length,
            pairs=self.objective != "none",
            languages=self.languages,
            never_masked=tuple(special[name] for name in ("[CLS]", "[SEP]", "[PAD]") if name in special),
        )


def open_corpus(uri: str) -> Corpus:
    """The corpus whose manifest is at ``uri``.

    Raises CorpusError when the manifest is missing, breaks its schema or uses another label convention.
    """
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: no such corpus manifest") from error
    corpus = Corpus(uri, parse_manifest(raw, uri), hashlib.sha256(raw).hexdigest())
    expected = LABEL_CONVENTIONS[corpus.objective]
    convention = corpus.manifest.label_convention
    if convention != expected:
        raise CorpusError(
            f"{uri}: label_convention is {json.dumps(convention)}, but for {corpus.objective} it must be"
            f" {json.dumps(expected)}"
        )
    for entry in corpus.manifest.sets:
        for language in entry.languages.keys() - corpus.manifest.languages.keys():
            raise CorpusError(f"{uri}: set {entry.label}: no counts of language {language!r}")
    return corpus


def check_model(
    corpus: Corpus, *, vocab_size: int, pairs: bool, max_positions: int, lengths: Iterable[int]
) -> None:
    """Raises ConfigError when a model of these sizes cannot train on ``corpus``."""
    if vocab_size != corpus.vocab_size:
        raise ConfigError(
            f"model: its vocabulary has {vocab_size} entries, that of {corpus.uri} has {corpus.vocab_size}"
        )
    if pairs and corpus.objective == "none":
        raise ConfigError(f"model: has a sentence-pair objective, but {corpus.uri} was built without one")
    for length in lengths:
        if length > max_positions:
            raise ConfigError(
                f"model: max_positions {max_positions} is too small for max_seq_length {length}"
            )


def check_shards(shards: Iterable[ShardPlace], threads: int = 8) -> int:
    """Compares every shard's footer with the manifest and returns the number of shards.

    Raises CorpusError that names the first shard (in order) that differs.
    """
    with ThreadPoolExecutor(threads) as pool:
        return sum(1 for _ in pool.map(open_shard, shards))
