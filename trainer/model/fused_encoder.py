"""The whole encoder with the fused layers: embeddings, layers of either norm, the final norm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.kernels.attention import AttentionSpec, Queries, Sequences, rotary_cache
from trainer.kernels.layer import (
    LayerSpec,
    fused_embeddings,
    fused_final_norm,
    fused_post_norm_layer,
    fused_pre_norm_layer,
)
from trainer.model.attention import VarlenLayout, window_of
from trainer.model.config import ModelConfig


def fused_encoder(
    encoder: Any, ids: Tensor, segments: Tensor, positions: Tensor, layout: VarlenLayout,
    all_states: list[Tensor] | None, rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The last hidden states [T, hidden] of ``encoder``, an encoder.Encoder, in autocast's type.

    Only those of ``rows``, int64 [N], if they are given: the last layer computes no others.
    Appends all hidden states to ``all_states`` unless it is None, which needs all rows. Raises BertmillError
    when cuBLASLt refuses.
    """
    config: ModelConfig = encoder.config
    sequences = Sequences(layout.cu_seqlens, layout.max_seqlen, positions)
    specs = _specs(encoder, layout.max_seqlen, ids.device)
    hidden = fused_embeddings(ids, segments, sequences, specs[False], encoder.embeddings)
    if encoder.embeddings.projection is not None:
        hidden = encoder.embeddings.projection(hidden)
    if all_states is not None:
        all_states.append(hidden)
    layers = _pre_norm_layers if config.norm == "pre" else _post_norm_layers
    if rows is None:
        return layers(encoder, hidden, sequences, specs, all_states, None)
    used = Queries.of(rows, layout.cu_seqlens)
    return layers(encoder, hidden, sequences, specs, all_states, used).index_select(0, used.places)


def _specs(encoder: Any, max_seqlen: int, device: torch.device) -> dict[bool, LayerSpec]:
    """What a global (False) and a local (True) layer compute."""
    config: ModelConfig = encoder.config
    specs = {}
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    for local in (False, True):
        window, table = window_of(config, local=local and config.local_window > 0), None
        if config.positions == "rotary":
            base = config.rotary_base_local if local else config.rotary_base
            table = rotary_cache(config.head_size, base, max_seqlen, device)
        attention = AttentionSpec(config.heads, (window.before, window.after), table)
        dropout = config.hidden_dropout if encoder.training else 0.0
        specs[local] = LayerSpec(
            attention, config.activation, config.norm_eps, dropout, dtype, encoder.keeps_copies
        )
    return specs


def _layers(encoder: Any, specs: dict[bool, LayerSpec]) -> list[tuple[Any, LayerSpec]]:
    """Each layer and what it computes."""
    config = encoder.config
    return [
        (encoder.layers[0 if config.share_layers else number], specs[config.is_local(number)])
        for number in range(config.layers)
    ]


def _recomputes(encoder: Any, number: int) -> bool:
    return bool(encoder.training and number < encoder.recompute_layers)


def _recomputed(layer: Callable[..., Any]) -> Callable[..., Any]:
    """The layer with its activations computed again in the backward pass. Dropout draws the same masks."""
    return partial(checkpoint, layer, use_reentrant=False)


def _post_norm_layers(
    encoder: Any,
    hidden: Tensor,
    sequences: Sequences,
    specs: dict[bool, LayerSpec],
    all_states: list[Tensor] | None,
    used: Queries | None,
) -> Tensor:
    for number, (layer, spec) in enumerate(_layers(encoder, specs)):
        run = _recomputed(layer.fused) if _recomputes(encoder, number) else layer.fused
        last = number + 1 == encoder.config.layers
        hidden = run(fused_post_norm_layer, hidden, sequences, spec, used if last else None)
        if all_states is not None:
            all_states.append(hidden)
    return hidden


def _pre_norm_layers(
    encoder: Any,
    hidden: Tensor,
    sequences: Sequences,
    specs: dict[bool, LayerSpec],
    all_states: list[Tensor] | None,
    used: Queries | None,
) -> Tensor:
    residual, branch = hidden, None
    for number, (layer, spec) in enumerate(_layers(encoder, specs)):
        if all_states is not None and branch is not None:
            all_states.append(residual + branch)
        run = _recomputed(layer.fused) if _recomputes(encoder, number) else layer.fused
        last = number + 1 == encoder.config.layers
        residual, branch = run(
            fused_pre_norm_layer, residual, branch, sequences, spec, used if last else None
        )
    assert branch is not None  # noqa: S101 - a model has a layer
    hidden = fused_final_norm(residual, branch, specs[False], encoder.final_norm)
    if all_states is not None:
        all_states.append(hidden)
    return hidden
