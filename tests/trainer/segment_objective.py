"""An objective from outside the package, as a user would write it: recognize the segment of each token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.config import ModelConfig
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import Objective, real_sequences
from trainer.model.pretraining import BertPretraining


class SegmentObjective(Objective):
    """Predicts from each token's hidden state whether the token is in segment A or B."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(config.hidden_size, width), nn.GELU(), nn.Linear(width, 2))

    def count_targets(self, batch: MicroBatch) -> Tensor:
        return batch.cu_seqlens.diff().long() * real_sequences(batch)

    def forward(self, model: BertPretraining, hidden: Tensor, batch: MicroBatch) -> Tensor:
        losses = F.cross_entropy(self.head(hidden).float(), batch.token_type_ids, reduction="none")
        # Sums of runs of consecutive tokens, one run for each sequence.
        running = F.pad(losses.cumsum(0), (1, 0))
        return running[batch.cu_seqlens.long()].diff() * real_sequences(batch)


def not_an_objective(config: ModelConfig) -> torch.nn.Module:
    return nn.Linear(config.hidden_size, 1)
