"""A trial of the fused layers on the device of a run, before it depends on them.

Only the GPU itself shows whether a kernel compiles, fits into shared memory and computes correctly. The trial
uses the run's own widths and lengths, so the run can reuse the kernels that Triton compiles for it.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from schemas.errors import BertmillError
from trainer.model.chunked_loss import chunked_token_losses
from trainer.model.config import ModelConfig
from trainer.model.microbatch import MicroBatch
from trainer.model.pretraining import BertPretraining

_TOKENS = 2048
_VOCABULARY = 64
# Relative distance of fused from plain hidden states or gradients. bf16 alone gives about 0.01.
_MOST_DISTANCE = 0.1


def fused_failure(config: ModelConfig, lengths: list[int], device: torch.device) -> str | None:
    """Why the fused layers cannot run ``config`` with sequences of ``lengths``, or None when they can.

    Runs two layers forward and backward, and compares with the plain ones. Takes a second or two.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # the run's random numbers do not depend on the trial
        torch.manual_seed(0)
        trials: list[tuple[str, Callable[[], float]]] = [
            (f"at length {length} they differ from plain layers", partial(_distance, config, length, device))
            for length in lengths
        ]
        trials.append(("their losses differ from plain ones", partial(_loss_distance, device)))
        for difference, distance_of in trials:
            try:
                distance = distance_of()
            except (BertmillError, RuntimeError, OSError) as error:
                return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            except Exception as error:  # Triton's own errors have no common class
                if not type(error).__module__.startswith("triton"):
                    raise
                return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if not distance < _MOST_DISTANCE:
                return f"{difference} by {distance:.3g} (relative)"
    return None


def _distance(config: ModelConfig, length: int, device: torch.device) -> float:
    """The largest relative distance of fused from plain: of hidden states and of all gradients together.

    Once with the last hidden states of all tokens, and once with those of masked tokens only.
    """
    layers = 1 if config.share_layers else 2
    small = {**config.model_dump(), "layers": layers, "vocab_size": _VOCABULARY, "hidden_dropout": 0.0}
    # Weights large enough for every sublayer to change the hidden states as much as the embeddings do.
    small |= {"max_positions": max(length, 8), "pair_objective": "none"}
    small |= {"initializer_range": 1.5 * config.hidden_size**-0.5}
    model = BertPretraining(ModelConfig.model_validate(small)).to(device)
    model.kernel = "varlen"
    batch = _batch(length, config.segments or 1).to(device)
    weights = torch.randn(batch.tokens, config.hidden_size, device=device)
    results: list[list[Tensor]] = []
    for fused in (True, False):
        model.encoder.fused = fused
        tensors: list[Tensor] = []
        for masked_only in (False, True):
            model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                hidden = model.encode_used(batch)[0] if masked_only else model.encode(batch)
            torch.autograd.backward((hidden.float() * weights[: len(hidden)]).sum())
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            tensors += [hidden.detach().float(), torch.cat(gradients)]
        results.append(tensors)
    return largest_distance(zip(*results, strict=True))


def _loss_distance(device: torch.device) -> float:
    """The larger relative distance of the fused loss from the plain one: of losses and of gradients."""
    states, table = (torch.randn(rows, 64, device=device).requires_grad_() for rows in (_TOKENS, _VOCABULARY))
    targets = torch.randint(-1, _VOCABULARY, (_TOKENS,), device=device)
    bias = torch.zeros(_VOCABULARY, device=device)
    results = []
    for fused in (True, False):
        with torch.autocast(device.type, torch.bfloat16):
            losses = chunked_token_losses(states, table, bias, targets, chunk=_TOKENS, fused=fused)
        gradients = torch.autograd.grad(losses.total, (states, table))
        results.append((losses.losses, torch.cat([gradient.flatten() for gradient in gradients])))
    return largest_distance(zip(*results, strict=True))


def largest_distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest relative distance of the first tensor of a pair from the second, or NaN if one is NaN.

    >>> largest_distance([(torch.tensor([3.0]), torch.tensor([2.0])), (torch.ones(1), torch.ones(1))])
    0.5
    """
    # Python's max would ignore a NaN that is not the first value.
    return float(torch.stack([(one - other).norm() / other.norm() for one, other in pairs]).amax())


def _batch(length: int, segments: int) -> MicroBatch:
    """Sequences of ``length``, of half of it and of one token, and the rest of the tokens in more of them."""
    lengths = [length, max(1, length // 2), 1]
    tokens = max(_TOKENS, -(-sum(lengths) // _TOKENS) * _TOKENS)
    rest = tokens - sum(lengths)
    lengths += [length] * (rest // length) + [rest % length]
    positions = torch.cat([torch.arange(one) for one in lengths])
    count = len(lengths)
    masked = torch.arange(0, tokens, 5)
    return MicroBatch(
        input_ids=torch.randint(0, _VOCABULARY, (tokens,)),
        token_type_ids=torch.randint(0, segments, (tokens,)),
        position_ids=positions,
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        max_seqlen=length,
        masked_index=masked,
        masked_ids=torch.zeros_like(masked),
        next_sentence_labels=torch.full((count,), -1),
        sample_ids=torch.arange(count),
        lang_ids=torch.zeros(count, dtype=torch.int64),
    )
