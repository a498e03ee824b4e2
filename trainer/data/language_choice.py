"""Chooses the rows of a step by language, from a pool of several times as many rows in training order."""

from dataclasses import dataclass

import numpy as np

from schemas.arrays import I64
from trainer.data.corpus import Corpus
from trainer.data.schedules import choose_by_language, language_shares, ramp
from trainer.recipe_config import LanguageSampling


@dataclass(frozen=True)
class LanguageChoice:
    """The languages of one sequence length in each step of a run of ``steps``."""

    settings: LanguageSampling
    rows_by_language: I64
    """[languages] rows of the corpus."""
    steps: int
    seed: int

    def rows(self, languages: I64, step: int, count: int) -> I64:
        """Indices of the ``count`` rows that ``step`` trains, of candidates with these ``languages``."""
        settings = self.settings
        exponent = ramp(settings.exponent, settings.end_exponent, step, self.steps)
        shares = language_shares(self.rows_by_language, exponent)
        return choose_by_language(languages, shares, count, self.seed, step)


def language_choice(
    settings: LanguageSampling | None, corpus: Corpus, max_seq_length: int, steps: int, seed: int
) -> LanguageChoice | None:
    """The choice for one length of ``corpus``, or None without settings."""
    if settings is None:
        return None
    rows = dict.fromkeys(corpus.languages, 0)
    for entry in corpus.manifest.sets:
        if entry.split == "train" and entry.max_seq_length == max_seq_length:
            for language, count in entry.languages.items():
                rows[language] += count
    return LanguageChoice(settings, np.array(list(rows.values()), dtype=np.int64), steps, seed)
