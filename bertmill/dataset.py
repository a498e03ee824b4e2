"""A corpus as a torch dataset: the rows of the trainer's global batches, for any training loop.

The order is the trainer's (`trainer.data.order`): pure arithmetic on the seed and the manifest. The state
of the dataset is therefore one integer, the number of rows that all ranks have consumed together.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from cluster import storage
from schemas.errors import ConfigError
from schemas.labels import NO_LABEL
from schemas.manifest import MANIFEST_NAME
from schemas.vocabulary import PAD
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.disk_cache import DiskCache
from trainer.data.dynamic_masks import dynamic_masks
from trainer.data.order import Places, SampleOrder
from trainer.data.packing import RowTable, gather_rows
from trainer.data.rows import ShardRows

logger = logging.getLogger(__name__)

IGNORE_INDEX = -100
"""The label that torch's and transformers' losses skip."""
_DISK_CACHE_BYTES = 32 << 30
# What transformers calls the label of each objective.
_LABEL_NAMES = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}

Row = dict[str, Tensor]


def load_corpus(
    manifest: str | os.PathLike[str],
    *,
    batch_size: int,
    max_seq_length: int | None = None,
    split: Literal["train", "validation"] = "train",
    epochs: int | None = None,
    seed: int = 12345,
    shuffle_window: int = 8,
    masking: Literal["static", "dynamic"] = "static",
    rank: int = 0,
    world_size: int = 1,
    cache_bytes: int = 512 << 20,
    disk_cache: str | os.PathLike[str] | None = None,
) -> "CorpusDataset":
    """The rows of one sequence length of a corpus as a `torch.utils.data.IterableDataset`.

    - ``manifest``: the corpus, as the path or URI of its manifest.json or its folder.
    - ``batch_size``: rows of one rank in a batch. Give the DataLoader the same number: the order of the rows
      is then the same for any number of DataLoader workers.
    - ``max_seq_length``: which set of the corpus. You may leave it out if there is only one.
    - ``split``: ``train``, or ``validation`` for the held-out rows.
    - ``epochs``: stop after this many epochs, or never if None. A corpus of several passes has new masks and
      pairs in each epoch, until all passes have been used.
    - ``seed``: of the order and of dynamic masks, as ``seed`` in the config of a training run.
    - ``shuffle_window``: row groups whose rows are shuffled together, as ``data.shuffle_window``.
    - ``masking``: ``static`` takes the masks of the shards, ``dynamic`` draws new ones in every epoch.
    - ``rank`` and ``world_size``: this process and the number of processes, where your loop gives each
      process its own rows. Leave them out where a library divides the rows (Accelerate, and with it the
      Hugging Face Trainer). A global batch, of batch_size * world_size rows, holds the same rows for any
      number of ranks.
    - ``cache_bytes``: memory for decoded row groups, in each DataLoader worker.
    - ``disk_cache``: a local folder that keeps row groups of remote shards.

    Raises ConfigError for an argument that is out of range or does not fit the corpus, CorpusError for a
    missing or damaged manifest. Iterating raises CorpusError for a damaged shard.

    >>> dataset = load_corpus("corpus/manifest.json", batch_size=32, max_seq_length=128)  # doctest: +SKIP
    >>> loader = DataLoader(dataset, 32, collate_fn=dataset.collator())  # doctest: +SKIP
    """
    uri = os.fspath(manifest)
    corpus = open_corpus(uri if uri.endswith(".json") else storage.join(uri, MANIFEST_NAME))
    length = _check_length(corpus, split, max_seq_length)
    if masking not in ("static", "dynamic"):
        raise ConfigError(f"masking: {masking!r} must be static or dynamic")
    return CorpusDataset(
        corpus,
        _Settings(
            max_seq_length=length,
            split=split,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            epochs=epochs,
            seed=seed,
            shuffle_window=shuffle_window,
            dynamic=masking == "dynamic",
            cache_bytes=cache_bytes,
            disk_cache=os.fspath(disk_cache) if disk_cache is not None else None,
        ),
    )


def _check_length(corpus: Corpus, split: str, max_seq_length: int | None) -> int:
    lengths = corpus.lengths(split)
    if not lengths:
        raise ConfigError(f"split: {corpus.uri} has no rows of split {split!r}")
    names = ", ".join(map(str, lengths))
    if max_seq_length is None and len(lengths) > 1:
        raise ConfigError(f"max_seq_length: choose one of {names}, which {corpus.uri} has")
    if max_seq_length is not None and max_seq_length not in lengths:
        raise ConfigError(f"max_seq_length: {corpus.uri} has no rows of {max_seq_length}; it has {names}")
    return lengths[0] if max_seq_length is None else max_seq_length


@dataclass(frozen=True)
class _Settings:
    max_seq_length: int
    split: str
    batch_size: int
    rank: int
    world_size: int
    epochs: int | None
    seed: int
    shuffle_window: int
    dynamic: bool
    cache_bytes: int
    disk_cache: str | None

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "shuffle_window", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: {value} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank: {self.rank} must be from 0 to {self.world_size - 1}")

    @property
    def global_batch(self) -> int:
        """Rows of a batch over all ranks."""
        return self.batch_size * self.world_size


class CorpusDataset(IterableDataset[Row]):
    """Rows in training order, from `load_corpus`.

    A row is a dict of int64 tensors: ``input_ids``, ``token_type_ids`` and ``labels`` (each [tokens];
    ``labels`` is -100 where nothing is predicted), ``next_sentence_label`` (0: is next) or
    ``sentence_order_label`` (0: in order) as the corpus was built, and ``row_id``, the row's number in the
    corpus. Rows have no padding. `collator` adds it.

    Every iteration starts at the loaded state, by default at the first row.
    """

    def __init__(self, corpus: Corpus, settings: _Settings) -> None:
        self._corpus, self._settings = corpus, settings
        self._start = self._consumed = 0

    @property
    def global_batch(self) -> int:
        """Rows of a batch over all ranks."""
        return self._settings.global_batch

    def rows_before(self, epoch: int) -> int:
        """The state at the start of ``epoch``: rows of all ranks in the epochs before it."""
        return self._order().epoch_start(epoch)

    def __len__(self) -> int:
        """Rows of this rank from the loaded state to the end of the last epoch.

        Raises TypeError for an endless dataset, as torch expects.
        """
        end = self._end(self._order())
        if end is None:
            raise TypeError("the dataset is endless; pass epochs to load_corpus, or max_steps to your loop")
        settings = self._settings
        batches, tail = divmod(max(0, end - self._start), settings.global_batch)
        # As np.array_split: the first ranks have a row more.
        of_tail = tail // settings.world_size + (settings.rank < tail % settings.world_size)
        return batches * settings.batch_size + (of_tail if tail >= settings.world_size else 0)

    def state_dict(self) -> dict[str, int]:
        """``{"rows": N}``: all ranks together have consumed the first N rows of the order.

        It counts whole batches. A DataLoader with workers advances only the copies in its workers. Use
        `state_after` there.
        """
        return {"rows": self._consumed}

    def state_after(self, batches: int) -> dict[str, int]:
        """The state after this many batches of this dataset, counted from the loaded state.

        As the order is arithmetic, this needs no record of what was read: after S optimizer steps with
        gradient accumulation over A batches, ``batches`` is S * A.
        """
        return {"rows": self._start + batches * self.global_batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """The next iteration starts at ``state``, which any batch size and number of ranks may have saved."""
        self._start = self._consumed = int(state["rows"])

    def collator(self, **arguments: Any) -> "PretrainingCollator":
        """A collator with the padding id of this corpus. ``arguments`` are those of `PretrainingCollator`."""
        pad = {"pad_token_id": self._corpus.special_ids[PAD]} if PAD in self._corpus.special_ids else {}
        return PretrainingCollator(**{**pad, **arguments})

    def __iter__(self) -> Iterator[Row]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        settings = self._settings
        rows = self._open_rows()
        order = self._order()
        end = self._end(order)
        masks = (
            dynamic_masks(self._corpus, settings.max_seq_length, settings.seed) if settings.dynamic else None
        )
        size = settings.global_batch
        # Workers take turns, batch by batch. The state of a worker's copy is where the round of turns starts.
        turn = self._start
        while True:
            first = turn + worker * size
            last = first + size if end is None else min(first + size, end)
            places = self._share(order, np.arange(first, last, dtype=np.int64))
            if places is None:
                return
            table = gather_rows(places, slice(None), rows)
            if masks is not None:
                table = masks.apply(table)
            turn += workers * size
            for index in range(len(table.lengths)):
                if index + 1 == len(table.lengths):
                    # Set before the row leaves: a loop that stops now has consumed the batch.
                    self._consumed = turn
                yield _row(table, index, _LABEL_NAMES.get(self._corpus.objective))

    def _share(self, order: SampleOrder, samples: npt.NDArray[np.int64]) -> Places | None:
        """The places of this rank's rows of a global batch, or None past the end.

        As in the trainer, a rank takes rows that are stored together, so that it reads few row groups.
        """
        settings = self._settings
        if len(samples) < settings.world_size:
            if len(samples):
                logger.warning(
                    "%s: the last %d rows are too few for %d ranks and are left out",
                    self._corpus.uri, len(samples), settings.world_size,
                )  # fmt: skip
            return None
        places = order.locate(samples)
        places = places.take(places.grouping())
        return places.take(np.array_split(np.arange(len(samples)), settings.world_size)[settings.rank])

    def _order(self) -> SampleOrder:
        settings = self._settings
        return self._corpus.order(
            settings.max_seq_length, settings.seed, settings.shuffle_window, settings.split
        )

    def _end(self, order: SampleOrder) -> int | None:
        epochs = self._settings.epochs
        return None if epochs is None else order.epoch_start(epochs)

    def _open_rows(self) -> ShardRows:
        # Opened by the process that reads: threads, locks and connections must not be copied to a worker.
        settings = self._settings
        return ShardRows(
            self._corpus.passes(settings.max_seq_length, settings.split),
            self._corpus.limits(settings.max_seq_length),
            settings.cache_bytes,
            disk=DiskCache(Path(settings.disk_cache), _DISK_CACHE_BYTES) if settings.disk_cache else None,
        )


def _row(table: RowTable, index: int, label_name: str | None) -> Row:
    start, length = int(table.starts[index]), int(table.lengths[index])
    masked = slice(
        int(table.masked_starts[index]), int(table.masked_starts[index] + table.masked_sizes[index])
    )
    labels = np.full(length, IGNORE_INDEX, dtype=np.int64)
    labels[table.masked_positions[masked]] = table.masked_ids[masked]
    row = {
        "input_ids": torch.from_numpy(table.input_ids[start : start + length].astype(np.int64)),
        "token_type_ids": torch.from_numpy((np.arange(length) >= table.segment_a[index]).astype(np.int64)),
        "labels": torch.from_numpy(labels),
        "row_id": torch.tensor(int(table.row_ids[index])),
    }
    if label_name is not None:
        label = int(table.labels[index])
        row[label_name] = torch.tensor(IGNORE_INDEX if label == NO_LABEL else label)
    return row


@dataclass(frozen=True)
class PretrainingCollator:
    """Pads rows of a `CorpusDataset` to a batch in the format of transformers' BERT models.

    The batch has ``input_ids``, ``token_type_ids``, ``attention_mask`` and ``labels``, int64
    [rows, longest row], and the sentence label [rows] if the rows have one. ``labels`` is -100 where
    nothing is predicted and in the padding.
    """

    pad_token_id: int = 0
    pad_to_multiple_of: int | None = None
    """Round the padded length up, for the tensor cores of a GPU."""
    pad_to: int | None = None
    """Pad to exactly this length, for one shape of all batches."""
    sentence_labels: bool = True
    """Whether the batch has ``next_sentence_label``, which a model without that head refuses."""

    def __call__(self, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The padded batch. Raises ConfigError for a row longer than ``pad_to``."""
        longest = max(len(row["input_ids"]) for row in rows)
        width = self.pad_to or longest
        if longest > width:
            raise ConfigError(f"pad_to: {width} is less than a row of {longest} tokens")
        if self.pad_to_multiple_of:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        fillers = {"input_ids": self.pad_token_id, "token_type_ids": 0, "labels": IGNORE_INDEX}
        batch = {name: torch.full((len(rows), width), filler) for name, filler in fillers.items()}
        batch["attention_mask"] = torch.zeros(len(rows), width, dtype=torch.int64)
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            batch["attention_mask"][number, :length] = 1
            # A loop may drop the columns that its model does not accept.
            for name in fillers.keys() & row.keys():
                batch[name][number, :length] = row[name]
        for name in _LABEL_NAMES.values():
            if self.sentence_labels and name in rows[0]:
                batch[name] = torch.stack([row[name] for row in rows])
        return {name: value for name, value in batch.items() if name in rows[0] or name == "attention_mask"}
