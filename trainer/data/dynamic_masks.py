"""Dynamic masking: new masks in every epoch, by the masking rule of the corpus or of the config.

masked_ids restore the original text of a row. The new masks are a function of (seed, epoch, row) and of the
rule of the step, so they do not depend on the number of ranks or on restarts, and two rows with equal text
have different masks.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np

from cluster import storage
from schemas.errors import ConfigError, CorpusError
from schemas.manifest import VocabularyFile, WordListFile
from schemas.masking.targets import (
    MaskingRule,
    MaskingVocabulary,
    Rows,
    Segmenter,
    mask_rows,
    offsets_of,
    sample_keys,
)
from schemas.masking.word_list import WordList, parse_words
from trainer.data.corpus import Corpus
from trainer.data.packing import RowTable, ragged
from trainer.data.schedules import StepMasks

_AS_CORPUS = StepMasks()


class DynamicMasks:
    """Replaces the masks of rows of one sequence length."""

    def __init__(
        self, rule: MaskingRule, vocabulary: MaskingVocabulary, seed: int, segmenter: Segmenter | None = None
    ) -> None:
        self._rule, self._vocabulary, self._seed, self._segmenter = rule, vocabulary, seed, segmenter

    def rule(self, step: StepMasks) -> MaskingRule:
        """The rule of the corpus with the changes for ``step``. A higher rate allows more targets in a row.

        Raises ConfigError when the shares add up to more than 1.
        """
        rule = self._rule
        rate = rule.probability if step.rate is None else step.rate
        mask = rule.mask_share if step.mask_share is None else step.mask_share
        random = rule.random_share if step.random_share is None else step.random_share
        if mask + random > 1 + 1e-9:
            raise ConfigError(
                f"mask_rule: mask_share {mask:g} and random_share {random:g} add up to more than 1; one of"
                " them is that of the corpus"
            )
        most = rule.max_predictions
        if rate != rule.probability:
            most = math.ceil(most * rate / rule.probability)
        return replace(
            rule,
            unit=step.unit or rule.unit,
            probability=rate,
            max_predictions=most,
            mask_share=mask,
            random_share=random,
        )

    def apply(self, table: RowTable, step: StepMasks = _AS_CORPUS) -> RowTable:
        """The same rows with other masks."""
        if not table.lengths.size:
            return table
        ids = table.input_ids[ragged(table.starts, table.lengths)]
        starts = offsets_of(table.lengths)
        old = ragged(table.masked_starts, table.masked_sizes)
        ids[table.masked_positions[old] + np.repeat(starts[:-1], table.masked_sizes)] = table.masked_ids[old]
        rows = Rows(ids, starts, self._keys(table))
        masked = mask_rows(rows, self.rule(step), self._vocabulary, self._segmenter)
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
    """Dynamic masks by the masking rule of the corpus.

    Raises CorpusError when the vocabulary (or the word list) is missing or not that of the manifest.
    """
    file, rule = corpus.manifest.vocabulary, corpus.manifest.masking
    pieces = _read(corpus, file, "vocabulary").decode("utf-8").split("\n")[: file.size]
    vocabulary = MaskingVocabulary.from_pieces(pieces, rule.predict_unknown)
    segmenter = None
    if rule.word_list is not None:
        segmenter = WordList.from_pieces(pieces, parse_words(_read(corpus, rule.word_list, "word list")))
    max_predictions = {
        entry.max_predictions for entry in corpus.manifest.sets if entry.max_seq_length == max_seq_length
    }
    return DynamicMasks(
        MaskingRule(
            unit=rule.unit,
            probability=rule.probability,
            max_predictions=max(max_predictions),
            mask_share=rule.mask_share,
            random_share=rule.random_share,
        ),
        vocabulary,
        seed,
        segmenter,
    )


def _read(corpus: Corpus, file: VocabularyFile | WordListFile, kind: str) -> bytes:
    """A file that the manifest lists with its hash."""
    uri = storage.join(corpus.folder, file.path)
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: no such file; dynamic masking needs the {kind} of the corpus") from error
    if hashlib.sha256(raw).hexdigest() != file.sha256:
        raise CorpusError(f"{uri}: not the {kind} of the manifest (its sha256 differs)")
    return raw
