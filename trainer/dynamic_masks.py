"""Fresh masks in every epoch, from shards whose masks are static, by the corpus' own masking rule.

The original text comes back by writing masked_ids over the masks; the new masks are drawn from
(seed, epoch, row), so they are the same for any number of ranks, after any restart, and differ between
two rows of equal text.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cluster import storage
from schemas.errors import CorpusError
from schemas.masking import (
    MaskingRule,
    MaskingVocabulary,
    Rows,
    Segmenter,
    mask_rows,
    offsets_of,
    sample_keys,
)
from schemas.word_list import WordList, parse_words
from trainer.corpus import Corpus
from trainer.packing import RowTable, ragged


class DynamicMasks:
    """Masks the rows of one sequence length anew."""

    def __init__(
        self, rule: MaskingRule, vocabulary: MaskingVocabulary, seed: int, segmenter: Segmenter | None = None
    ) -> None:
        self._rule, self._vocabulary, self._seed, self._segmenter = rule, vocabulary, seed, segmenter

    def apply(self, table: RowTable) -> RowTable:
        """The same rows with other masks."""
        if not table.lengths.size:
            return table
        ids = table.input_ids[ragged(table.starts, table.lengths)]
        starts = offsets_of(table.lengths)
        old = ragged(table.masked_starts, table.masked_sizes)
        ids[table.masked_positions[old] + np.repeat(starts[:-1], table.masked_sizes)] = table.masked_ids[old]
        rows = Rows(ids, starts, self._keys(table))
        masked = mask_rows(rows, self._rule, self._vocabulary, self._segmenter)
        return replace(
            table,
            input_ids=masked.input_ids,
            starts=starts[:-1],
            masked_positions=masked.positions,
            masked_ids=masked.labels,
            masked_starts=masked.position_offsets[:-1],
            masked_sizes=np.diff(masked.position_offsets),
        )

    def _keys(self, table: RowTable) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        keys = np.empty(table.row_ids.size, dtype=np.uint64)
        for epoch in np.unique(table.epochs):
            chosen = table.epochs == epoch
            keys[chosen] = sample_keys(self._seed, int(epoch), table.row_ids[chosen])
        return keys


def dynamic_masks(corpus: Corpus, max_seq_length: int, seed: int) -> DynamicMasks:
    """Masks by the rule that the shards of this length were made by.

    Raises CorpusError when the vocabulary (or the word list) is missing or is not that of the manifest.
    """
    about = corpus.manifest["vocabulary"]
    pieces = _read(corpus, about, "vocabulary").decode("utf-8").split("\n")[: about["size"]]
    rule = corpus.manifest["masking"]
    vocabulary = MaskingVocabulary.from_pieces(pieces, bool(rule.get("predict_unknown", False)))
    segmenter = None
    if rule.get("words") is not None:
        segmenter = WordList.from_pieces(pieces, parse_words(_read(corpus, rule["words"], "word list")))
    targets = {
        one["max_predictions"] for one in corpus.manifest["sets"] if one["max_seq_length"] == max_seq_length
    }
    return DynamicMasks(
        MaskingRule(
            unit=rule["unit"],
            probability=rule["probability"],
            max_predictions=max(targets),
            mask_share=rule["mask_share"],
            random_share=rule["random_share"],
        ),
        vocabulary,
        seed,
        segmenter,
    )


def _read(corpus: Corpus, about: Mapping[str, Any], what: str) -> bytes:
    """A file that the manifest names with its hash."""
    uri = storage.join(corpus.folder, about["path"])
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the {what} is missing, dynamic masks need it") from error
    if hashlib.sha256(raw).hexdigest() != about["sha256"]:
        raise CorpusError(f"{uri}: not the {what} of the manifest (its sha256 differs)")
    return raw
