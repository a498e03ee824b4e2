"""A custom training objective: predict the language of a row from its [CLS] state.

A config of a training run names it, from the folder that contains this file's folder:

    objective:
      use: examples.language_objective:LanguageObjective
      weight: 0.1
      settings: {languages: 5}
"""

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.config import ModelConfig
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import Objective, real_sequences
from trainer.model.pretraining import BertPretraining


class LanguageObjective(Objective):
    """Cross-entropy of the row's language. ``languages`` is the number of languages of the corpus."""

    def __init__(self, config: ModelConfig, languages: int) -> None:
        super().__init__()
        self.head = nn.Linear(config.hidden_size, languages)

    def count_targets(self, batch: MicroBatch) -> Tensor:
        """One target for each sequence that is not a filler."""
        return real_sequences(batch).long()

    def forward(self, model: BertPretraining, hidden: Tensor, batch: MicroBatch) -> Tensor:
        """The loss of each sequence, from the hidden state of its first token."""
        first_tokens = hidden[batch.cu_seqlens[:-1].long().clamp(max=len(hidden) - 1)]
        losses = F.cross_entropy(
            self.head(first_tokens).float(), batch.lang_ids.clamp(min=0), reduction="none"
        )
        return losses * real_sequences(batch)
