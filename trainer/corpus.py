"""The corpus as the trainer sees it: what the manifest promises, checked before the first step."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cluster import storage
from schemas.errors import ConfigError, CorpusError
from schemas.manifest import parse_manifest
from schemas.shards import LABEL_CONVENTIONS
from trainer.order import SampleOrder
from trainer.row_groups import RowLimits
from trainer.rows import ShardPlace, open_shard


@dataclass(frozen=True)
class Corpus:
    """A parsed manifest and where it lies. ``digest`` is the SHA-256 of its bytes."""

    uri: str
    manifest: dict[str, Any]
    digest: str

    @property
    def objective(self) -> str:
        """nsp, sop or none."""
        return str(self.manifest["objective"])

    @property
    def vocab_size(self) -> int:
        """Pieces in the vocabulary."""
        return int(self.manifest["vocabulary"]["size"])

    @property
    def special_ids(self) -> dict[str, int]:
        """Special token -> id."""
        return dict(self.manifest["vocabulary"]["special_ids"])

    @property
    def languages(self) -> tuple[str, ...]:
        """Sorted; the language ids of micro-batches index into it."""
        return tuple(sorted(self.manifest["languages"]))

    @property
    def folder(self) -> str:
        """The folder that shard paths are relative to."""
        return self.uri.rpartition("/")[0] or "."

    def lengths(self, split: str = "train") -> list[int]:
        """Sequence lengths that ``split`` has rows of, ascending."""
        sets = self.manifest["sets"]
        return sorted({one["max_seq_length"] for one in sets if one["split"] == split and one["rows"]})

    def passes(self, max_seq_length: int, split: str = "train") -> list[list[ShardPlace]]:
        """The shards of each pass over one length. Raises CorpusError when a pass is missing."""
        chosen = [
            one
            for one in self.manifest["sets"]
            if one["split"] == split and one["max_seq_length"] == max_seq_length and one["rows"]
        ]
        chosen.sort(key=lambda one: one["pass"])
        numbers = [one["pass"] for one in chosen]
        if numbers != list(range(len(numbers))):
            raise CorpusError(
                f"{self.uri}: length {max_seq_length} has the passes {numbers}, not 0, 1, 2 ..."
            )
        return [[self._place(shard) for shard in one["shards"]] for one in chosen]

    def order(self, max_seq_length: int, seed: int, window: int = 1) -> SampleOrder:
        """The training order of one length."""
        passes = [[shard.row_groups for shard in shards] for shards in self.passes(max_seq_length)]
        return SampleOrder(passes, seed, window)

    def limits(self, max_seq_length: int) -> RowLimits:
        """What every row of this length has to keep to."""
        special = self.special_ids
        return RowLimits(
            vocab_size=self.vocab_size,
            max_seq_length=max_seq_length,
            pairs=self.objective != "none",
            languages=self.languages,
            never_masked=tuple(special[name] for name in ("[CLS]", "[SEP]", "[PAD]") if name in special),
        )

    def _place(self, shard: dict[str, Any]) -> ShardPlace:
        return ShardPlace(
            uri=storage.join(self.folder, shard["path"]),
            size=shard["bytes"],
            sha256=shard["sha256"],
            row_groups=tuple(shard["row_groups"]),
        )


def open_corpus(uri: str) -> Corpus:
    """The corpus whose manifest lies at ``uri``.

    Raises CorpusError when it is missing, breaks its schema or uses another label convention.
    """
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: no such corpus manifest") from error
    corpus = Corpus(uri, parse_manifest(raw, uri), hashlib.sha256(raw).hexdigest())
    wanted = LABEL_CONVENTIONS[corpus.objective]
    found = corpus.manifest["label_convention"]
    if found != wanted:
        raise CorpusError(
            f"{uri}: label_convention is {json.dumps(found)};"
            f" for {corpus.objective} this reads {json.dumps(wanted)}"
        )
    for one in corpus.manifest["sets"]:
        for shard in one["shards"]:
            if sum(shard["row_groups"]) != shard["rows"]:
                raise CorpusError(f"{uri}: {shard['path']}: row_groups do not add up to rows")
    return corpus


def check_model(
    corpus: Corpus, *, vocab_size: int, pairs: bool, max_positions: int, lengths: Iterable[int]
) -> None:
    """Raises ConfigError when a model of these sizes cannot be trained on ``corpus``."""
    if vocab_size != corpus.vocab_size:
        raise ConfigError(
            f"model: vocabulary of {vocab_size}, but {corpus.uri} has {corpus.vocab_size} pieces"
        )
    if pairs and corpus.objective == "none":
        raise ConfigError(f"model: has a sentence objective, but {corpus.uri} was built with objective none")
    for length in lengths:
        if length > max_positions:
            raise ConfigError(f"model: {max_positions} positions are too few for max_seq_length {length}")


def check_shards(shards: Iterable[ShardPlace], threads: int = 8) -> int:
    """Opens every shard's footer and compares it with the manifest; the number of shards.

    Raises CorpusError that names the first shard (in order) at fault.
    """
    with ThreadPoolExecutor(threads) as pool:
        return sum(1 for _ in pool.map(open_shard, shards))
