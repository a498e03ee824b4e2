"""The corpus of a training: its manifest, and the checks before the first step."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cluster import storage
from schemas.errors import ConfigError, CorpusError
from schemas.labels import LABEL_CONVENTIONS
from schemas.manifest import Manifest, Shard, parse_manifest
from trainer.checkpoint.manifest import TOKENIZER_FILES
from trainer.data.order import SampleOrder
from trainer.data.row_groups import RowLimits
from trainer.data.rows import ShardPlace, open_shard


@dataclass(frozen=True)
class Corpus:
    """A parsed manifest."""

    uri: str
    """Of the manifest."""
    manifest: Manifest
    digest: str
    """SHA-256 of the manifest's bytes."""

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

    def passes(self, max_seq_length: int, split: str = "train") -> list[list[ShardPlace]]:
        """The shards of each pass over one length. Raises CorpusError when a pass is missing."""
        chosen = [
            entry
            for entry in self.manifest.sets
            if entry.split == split and entry.max_seq_length == max_seq_length and entry.rows
        ]
        chosen.sort(key=lambda entry: entry.pass_number)
        numbers = [entry.pass_number for entry in chosen]
        if numbers != list(range(len(numbers))):
            raise CorpusError(
                f"{self.uri}: length {max_seq_length} has the passes {numbers}, not 0, 1, 2 ..."
            )
        return [[self._place(shard) for shard in entry.shards] for entry in chosen]

    def order(self, max_seq_length: int, seed: int, window: int = 1) -> SampleOrder:
        """The training order of one length."""
        passes = [[shard.row_groups for shard in shards] for shards in self.passes(max_seq_length)]
        return SampleOrder(passes, seed, window)

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

    def _place(self, shard: Shard) -> ShardPlace:
        return ShardPlace(
            uri=storage.join(self.folder, shard.path),
            size=shard.bytes,
            sha256=shard.sha256,
            row_groups=tuple(shard.row_groups),
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
    for shard in corpus.manifest.shards:
        if sum(shard.row_groups) != shard.rows:
            raise CorpusError(f"{uri}: {shard.path}: row_groups do not add up to rows")
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
