"""Hidden states as features: the last layer, the second to last, or three mixes of the last four.

These are the choices in BERT's table 7 (Devlin et al. 2019, feature-based approach on CoNLL-2003).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.model.microbatch import MicroBatch
from trainer.model.pretraining import BertPretraining

Choice = Literal["last", "second_to_last", "concat_last_four", "sum_last_four", "weighted_last_four"]


class FeatureMix(nn.Module):
    """Makes one vector for each token from the hidden states of all layers.

    weighted_last_four learns a softmax weight for each of the four, and a common scale (ELMo, Peters et
    al. 2018). A model with fewer than four states uses all of them, including the embeddings.
    """

    def __init__(self, choice: Choice, states: int, hidden_size: int) -> None:
        super().__init__()
        self.choice = choice
        self.used = 1 if choice in ("last", "second_to_last") else min(4, states)
        self.size = hidden_size * (self.used if choice == "concat_last_four" else 1)
        weighted = choice == "weighted_last_four"
        self.weights = nn.Parameter(torch.zeros(self.used)) if weighted else None
        self.scale = nn.Parameter(torch.ones(())) if weighted else None

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """[T, size] from the states of the embeddings and every layer, each [T, hidden]."""
        if self.choice == "last":
            return states[-1]
        if self.choice == "second_to_last":
            return states[-2]
        top = states[-self.used :]
        if self.choice == "concat_last_four":
            return torch.cat(list(top), dim=-1)
        stacked = torch.stack(list(top))
        if self.weights is None or self.scale is None:
            return stacked.sum(0)
        return self.scale * torch.einsum("l,lth->th", self.weights.softmax(0), stacked)


@torch.no_grad()
def extract_features(model: BertPretraining, batch: MicroBatch, choice: Choice = "last") -> list[Tensor]:
    """The features [length, size] of each sequence of ``batch``, without dropout.

    weighted_last_four has equal weights here, because only fine-tuning learns them.
    """
    was_training = model.training
    model.eval()
    states = model.hidden_states(batch)
    model.train(was_training)
    mix = FeatureMix(choice, len(states), model.config.hidden_size).to(states[0].device)
    return list(mix(states).split(batch.cu_seqlens.diff().tolist()))
