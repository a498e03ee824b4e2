"""torch.compile compiles the network with its loss as one graph, and no part runs uncompiled.

A graph break or a second compilation halves the rate but does not change results, so these tests count them.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from tests.trainer.models import STYLES, VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import PretrainingLoss, batch_totals

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{style: (style, {}) for style in STYLES},
    "pre-norm": ("bert", {"norm": "pre", "activation": "gelu_tanh"}),
    "dropout": ("bert", {"hidden_dropout": 0.1}),
    "levers": ("bert", {}),
}


@varlen._varlen_attn.register_kernel("cpu")
def zeros(query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel itself needs a GPU. The number of graphs does not depend on its results."""
    return (
        torch.zeros_like(query),
        query.new_zeros(query.shape[1], query.shape[0], dtype=torch.float32),
        torch.zeros(2, dtype=torch.uint64),
    )


def batch_of(length: int, seed: int) -> MicroBatch:
    """A micro-batch of the shape of all micro-batches of this length."""
    rows = random_rows(8, VOCAB, lengths=(1, length), masked=(0, 4), seed=seed)
    return replace(pack(rows), max_seqlen=length).padded_to(tokens=512, sequences=80, masked=64)


@pytest.mark.parametrize("kernel", ["varlen", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_one_graph_for_each_length(name: str, kernel: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def counting(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    style, fields = MODELS[name]
    # Tracing treats layers of one kind equally, so one of each kind is enough.
    layers = 2 if style.startswith("modern") or name == "levers" else 1
    model = small_model(style, layers=layers, **fields).train()
    model.kernel = kernel
    # With fullgraph a graph break is an error.
    loss = PretrainingLoss(model, 3)
    if name == "levers":
        loss.z_loss, model.encoder.recompute_layers = 0.1, 1
    compiled = torch.compile(loss, backend=counting, fullgraph=True, dynamic=False)
    for length, expected in ((16, 1), (32, 2)):
        for seed in range(2):
            batch = batch_of(length, seed)
            with torch.autocast("cpu", torch.bfloat16):
                compiled(batch, batch_totals([batch]))
        assert len(graphs) == expected
