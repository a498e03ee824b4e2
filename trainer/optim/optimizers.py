"""Optimizers whose steps never wait for the device: AdamW, LAMB, and Muon for the matrices.

All of them take the learning rate as a tensor (set_learning_rate), and a tensor can make them leave
parameters and state unchanged (skip_step). So a graph can capture a step, and the device can skip a spike
without the host.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from trainer.distributed.sharding import (
    is_sharded,
    local,
    local_parts,
    norms,
    sharded_as,
    sum_over_shards,
)

Kind = Literal["adamw", "lamb", "muon", "stable_adamw"]

# Newton-Schulz coefficients of Jordan et al. 2024 (Muon): they amplify small singular values fastest.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_MUON_MOMENTUM = 0.95
# A tied MLM decoder is not listed, because it is the embedding table.
_OUTPUT_WEIGHTS = ("pair_head.weight", "token_head.decoder.weight")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups with weight decay (matrices), then without (biases and norms: fewer than 2 dimensions).

    ``parts`` is the number of matrices stacked in a parameter (3 for query, key and value). LAMB and Muon
    treat each matrix separately. ``matrix`` is true for the weights of linear layers inside the network,
    which Muon updates. In its published rule, AdamW updates embeddings and the output layer.
    """
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    groups: dict[tuple[bool, bool, int], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim >= 2
        matrix = decays and id(parameter) not in embeddings and not name.endswith(_OUTPUT_WEIGHTS)
        parts = 3 if name.endswith("attention.qkv.weight") else 1
        groups.setdefault((decays, matrix, parts), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            "adapt": decays,
            "matrix": matrix,
            "parts": parts,
        }
        for (decays, matrix, parts), parameters in sorted(groups.items(), reverse=True)
    ]


def build_optimizer(
    model: nn.Module,
    kind: Kind,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
) -> torch.optim.Optimizer:
    """The optimizer of all trainable parameters of ``model``, on their device.

    adamw: Loshchilov & Hutter 2019, fused, with bias correction (the 2018 BERT code had none).
    """
    groups = parameter_groups(model, weight_decay)
    device = groups[0]["params"][0].device
    lr = torch.tensor(learning_rate, dtype=torch.float32, device=device)
    optimizer: torch.optim.Optimizer
    if kind == "lamb":
        optimizer = Lamb(groups, lr, betas, eps)
    elif kind == "muon":
        optimizer = Muon(groups, lr, betas, eps)
    elif kind == "stable_adamw":
        optimizer = StableAdamW(groups, lr, betas, eps)
    else:
        graphs = device.type == "cuda"
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True, capturable=graphs)
    optimizer.register_load_state_dict_post_hook(_move_settings)
    return optimizer


def _move_settings(optimizer: torch.optim.Optimizer) -> None:
    """After a load, replaces the device-dependent settings of the saved optimizer by those of this device."""
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
        if "capturable" in group:
            group["capturable"] = device.type == "cuda"


def load_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the moments and step counters of ``state``, but keeps the config's betas, eps and weight decay.

    torch's load_state_dict replaces those too, so a change that the run accepts would have no effect.
    Raises ValueError when the moments do not belong to this optimizer's parameters.
    """
    settings = [
        {name: value for name, value in group.items() if name not in ("params", "lr")}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(_sharded_state(optimizer, state))
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
        of_muon = isinstance(optimizer, Muon) and group["matrix"]
        expected = {"momentum"} if of_muon else {"step", "exp_avg", "exp_avg_sq"}
        for parameter in group["params"]:
            _check_moments(parameter, optimizer.state.get(parameter) or {}, expected)


def _sharded_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with whole moments replaced by those that this rank keeps of them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: sharded_as(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": moments}


def _check_moments(parameter: Tensor, moments: dict[str, Any], expected: set[str]) -> None:
    if moments and moments.keys() != expected:
        raise ValueError(f"the optimizer's state has {sorted(moments)}, this one needs {sorted(expected)}")
    for name, value in moments.items():
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            raise ValueError(f"{name} of the optimizer is not a float32 tensor")
        if name != "step" and value.shape != parameter.shape:
            raise ValueError(f"{name} has shape {list(value.shape)}, its parameter {list(parameter.shape)}")


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Sets the learning rate of every group in place, without a synchronization with the host."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def skip_step(optimizer: torch.optim.Optimizer, skip: Tensor | None) -> None:
    """Makes the following steps do nothing if ``skip`` (0-d, on the device) is not 0. None undoes that.

    It works for every optimizer of this module, through the attribute that gradient scalers use.
    """
    optimizer.found_inf = None if skip is None else skip.float().reshape(())  # type: ignore[attr-defined]  # torch's own name


class _DeviceOptimizer(torch.optim.Optimizer):
    """Base of the optimizers below: moments and step counters on the device."""

    found_inf: Tensor | None = None

    def __init__(
        self, groups: list[dict[str, Any]], lr: Tensor, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        raise NotImplementedError

    def _keep(self, like: Tensor) -> Tensor:
        """1 when this step counts, 0 when it is skipped."""
        if self.found_inf is None:
            return torch.ones((), device=like.device)
        return (self.found_inf == 0).float()

    def _gradients(self, parameters: list[Tensor]) -> list[Tensor]:
        """The rank's gradients in fp32, all 0 when the step is skipped: they may not be finite then."""
        gradients = [local(p.grad).float() for p in parameters if p.grad is not None]
        if self.found_inf is None:
            return gradients
        skipped = self.found_inf != 0
        return [torch.where(skipped, torch.zeros_like(gradient), gradient) for gradient in gradients]

    def _adam_direction(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor], keep: Tensor
    ) -> list[Tensor]:
        """Updates both moments and returns the bias-corrected m / (sqrt(v) + eps) of each parameter."""
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        first = [local(self.state[parameter]["exp_avg"]) for parameter in parameters]
        second = [local(self.state[parameter]["exp_avg_sq"]) for parameter in parameters]
        steps = [self.state[parameter]["step"] for parameter in parameters]
        beta1, beta2 = group["betas"]
        # As a list, because the overload for one tensor copies it to the host.
        torch._foreach_add_(steps, [keep] * len(steps))
        torch._foreach_mul_(first, 1 - (1 - beta1) * keep)
        torch._foreach_add_(first, gradients, alpha=1 - beta1)
        torch._foreach_mul_(second, 1 - (1 - beta2) * keep)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        # All parameters of a group have the same number of steps, at least 1 in case the first was skipped.
        count = steps[0].clamp(min=1)
        correction1, correction2 = 1 - beta1**count, 1 - beta2**count
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, correction2.sqrt())
        torch._foreach_add_(denominator, group["eps"])
        direction = list(torch._foreach_div(first, denominator))
        torch._foreach_div_(direction, correction1)
        return direction


class Lamb(_DeviceOptimizer):
    """LAMB, algorithm 2 of You et al. 2020 (Large Batch Optimization for Deep Learning).

    With bias-corrected m and v: r = m / (sqrt(v) + eps), u = r + weight_decay x,
    x <- x - lr |x| / |u| u, with the Euclidean norms of each matrix. The trust ratio |x| / |u| is 1 for
    biases and norms and where one of the two norms is 0. It is not clipped. Query, key and value matrices
    have a ratio each.
    """

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        keep = self._keep(parameters[0])
        direction = self._adam_direction(group, parameters, self._gradients(parameters), keep)
        weights = [local(parameter) for parameter in parameters]
        if group["weight_decay"]:
            torch._foreach_add_(direction, weights, alpha=group["weight_decay"])
        lr = group["lr"] * keep
        if not group["adapt"]:
            torch._foreach_mul_(direction, lr)
            torch._foreach_sub_(weights, direction)
            return
        parts = [local_parts(parameter, group["parts"]) for parameter in parameters]
        matrices = [matrix for own in parts for matrix in own]
        updates = [
            part
            for update, own in zip(direction, parts, strict=True)
            for part in update.split([len(matrix) for matrix in own])
        ]
        weight_norms, update_norms = norms([*matrices, *updates], parameters[0]).chunk(2)
        both = (weight_norms > 0) & (update_norms > 0)
        ratio = torch.where(both, weight_norms / update_norms, torch.ones_like(weight_norms))
        torch._foreach_mul_(updates, list((ratio * lr).unbind()))
        torch._foreach_sub_(matrices, updates)


class Muon(_DeviceOptimizer):
    """Muon (Jordan et al. 2024) for the matrices inside the network, AdamW for everything else.

    b <- 0.95 b + g, u = orthogonalized (g + 0.95 b), by five Newton-Schulz steps,
    x <- (1 - lr weight_decay) x - lr 0.2 sqrt(max(rows, columns)) u. The root mean square of this update
    is about that of an AdamW step in a long training (Liu et al. 2025), so both share one learning rate.
    It never exceeds 0.2 lr, while AdamW's first steps reach lr: a training of a few hundred steps needs two
    to three times AdamW's learning rate.
    """

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        keep = self._keep(parameters[0])
        gradients = self._gradients(parameters)
        lr = group["lr"] * keep
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        if not group["matrix"]:
            direction = self._adam_direction(group, parameters, gradients, keep)
            torch._foreach_mul_(direction, lr)
            torch._foreach_sub_(parameters, direction)
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum: Tensor = state["momentum"]
            momentum.mul_(1 - (1 - _MUON_MOMENTUM) * keep).add_(gradient)
            ahead = gradient + _MUON_MOMENTUM * momentum
            for place, part in zip(parameter.chunk(group["parts"]), ahead.chunk(group["parts"]), strict=True):
                scale = 0.2 * math.sqrt(max(part.shape))
                place.sub_(orthogonalize(part) * (lr * scale))


def orthogonalize(matrix: Tensor) -> Tensor:
    """About U V' of ``matrix`` = U S V': moves its singular values to between 0.7 and 1.2.

    Computes in bf16 on CUDA and in the matrix's own dtype elsewhere. A zero matrix stays zero.
    """
    a, b, c = _NEWTON_SCHULZ
    wide = matrix.shape[0] > matrix.shape[1]
    work = matrix.to(torch.bfloat16) if matrix.is_cuda else matrix
    work = work.T if wide else work
    work = work / (work.norm() + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = work @ work.T
        work = a * work + (b * square + c * square @ square) @ work
    orthogonal: Tensor = work.T if wide else work
    return orthogonal.to(matrix.dtype)


class StableAdamW(_DeviceOptimizer):
    """AdamW with update clipping, algorithm 2 of Wortsman et al. 2023 (Stable and low-precision training).

    With bias-corrected m and v, each parameter has the learning rate lr / max(1, RMS), where RMS is the root
    mean square of g / sqrt(max(v, eps^2)): a gradient that is much larger than those before makes no large
    step. ModernBERT was trained with it (Warner et al. 2024).
    """

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        keep = self._keep(parameters[0])
        gradients = self._gradients(parameters)
        direction = self._adam_direction(group, parameters, gradients, keep)
        states = [self.state[parameter] for parameter in parameters]
        correction = 1 - group["betas"][1] ** states[0]["step"].clamp(min=1)
        second = torch._foreach_div([local(state["exp_avg_sq"]) for state in states], correction)
        torch._foreach_clamp_min_(second, group["eps"] ** 2)
        squares = torch._foreach_div(torch._foreach_mul(gradients, gradients), second)
        spread = _means(squares, parameters).sqrt()
        lr = list((group["lr"] * keep / spread.clamp(min=1)).unbind())
        weights = [local(parameter) for parameter in parameters]
        torch._foreach_add_(direction, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(direction, lr)
        torch._foreach_sub_(weights, direction)


def _means(values: Sequence[Tensor], parameters: list[Tensor]) -> Tensor:
    """The mean of each of ``values``, over all ranks if the ``parameters`` are sharded."""
    if not is_sharded(parameters[0]):
        return torch.stack([value.mean() for value in values])
    counts = torch.tensor([parameter.numel() for parameter in parameters], device=values[0].device)
    return sum_over_shards(torch.stack([value.sum() for value in values]), parameters[0]) / counts
