"""Runs a model with a head over encoded examples."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.distributed.ranks import Ranks
from trainer.finetuning.heads.model import TaskModel
from trainer.finetuning.inputs.encoding import Encoded, pack_encoded

_BATCH = 64


def head_outputs(
    model: TaskModel,
    inputs: Sequence[Encoded],
    ranks: Ranks,
    dtype: torch.dtype,
    between_batches: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """The outputs of the head for each input, fp32 on the CPU: [outputs], or [length, outputs] for tokens.

    Inputs of like length share a batch. The ``ranks`` share the batches and all get all outputs, with the
    bits of a single process. ``between_batches`` is called by all ranks together before each batch.
    """
    model.eval()
    per_sequence = model.kind == "sequence"
    by_length = sorted(range(len(inputs)), key=lambda place: len(inputs[place].ids))
    batches = [by_length[start : start + _BATCH] for start in range(0, len(by_length), _BATCH)]
    mine: dict[int, Tensor] = {}
    for start in range(0, len(batches), ranks.world_size):
        between_batches()
        for places in batches[start : start + ranks.world_size][ranks.rank : ranks.rank + 1]:
            chosen = [inputs[place] for place in places]
            with torch.no_grad(), torch.autocast(ranks.device.type, dtype, enabled=dtype != torch.float32):
                output = model(pack_encoded(chosen).to(ranks.device)).float().cpu()
            parts = output.split([1 if per_sequence else len(encoded.ids) for encoded in chosen])
            mine |= {
                place: part[0] if per_sequence else part for place, part in zip(places, parts, strict=True)
            }
    gathered = mine if ranks.host is None else _gather(mine, ranks)
    return [gathered[place] for place in range(len(inputs))]


def _gather(mine: dict[int, Tensor], ranks: Ranks) -> dict[int, Tensor]:
    """The outputs of all ranks by place."""
    parts: list[dict[int, Tensor]] = [{}] * ranks.world_size
    dist.all_gather_object(parts, mine, group=ranks.host)
    return {place: output for part in parts for place, output in part.items()}
