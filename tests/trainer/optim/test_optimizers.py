"""Compares optimizer steps with the published rules, implemented here in float64."""

import copy
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining
from trainer.optim.optimizers import (
    Kind,
    build_optimizer,
    load_moments,
    orthogonalize,
    parameter_groups,
    set_learning_rate,
    skip_step,
)

KINDS = list(get_args(Kind))
BATCH = pack(random_rows(8, VOCAB))


def backward(model: BertPretraining) -> None:
    model.zero_grad()
    PretrainingLoss(model, 3)(BATCH, batch_totals([BATCH])).loss.backward()


def reference_directions(gradients: list[np.ndarray], betas: tuple[float, float], eps: float) -> np.ndarray:
    first = second = np.zeros_like(gradients[0])
    for gradient in gradients:
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
    count = len(gradients)
    moment: np.ndarray = first / (1 - betas[0] ** count)
    return moment / (np.sqrt(second / (1 - betas[1] ** count)) + eps)


def trained(
    kind: Kind, steps: int
) -> tuple[dict[str, np.ndarray], dict[str, list[np.ndarray]], BertPretraining]:
    """Parameters before the last step, gradients of all steps, and the model after them."""
    model = small_model()
    optimizer = build_optimizer(
        model, kind, learning_rate=0.01, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1
    )
    gradients: dict[str, list[np.ndarray]] = {name: [] for name, _ in model.named_parameters()}
    before: dict[str, np.ndarray] = {}
    for _ in range(steps):
        backward(model)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradients[name].append(parameter.grad.double().numpy().copy())
            before[name] = parameter.detach().double().numpy().copy()
        optimizer.step()
    return before, gradients, model


@pytest.mark.parametrize("steps", [1, 3])
def test_lamb_is_the_published_rule(steps: int) -> None:  # trainer-025
    before, gradients, model = trained("lamb", steps)
    for name, parameter in model.named_parameters():
        update = reference_directions(gradients[name], (0.9, 0.98), 1e-6)
        x = before[name]
        if x.ndim >= 2:
            update = update + 0.1 * x
            parts = 3 if "qkv" in name else 1
            blocks = zip(np.split(x, parts), np.split(update, parts), strict=True)
            update = np.concatenate([u * np.linalg.norm(p) / np.linalg.norm(u) for p, u in blocks])
        expected = x - 0.01 * update
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("steps", [1, 3])
def test_adamw_is_the_published_rule(steps: int) -> None:
    before, gradients, model = trained("adamw", steps)
    for name, parameter in model.named_parameters():
        decay = 0.1 if before[name].ndim >= 2 else 0.0
        update = reference_directions(gradients[name], (0.9, 0.98), 1e-6) + decay * before[name]
        expected = before[name] - 0.01 * update
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=2e-6, err_msg=name)


def test_muon_steps_along_the_singular_directions() -> None:
    before, gradients, model = trained("muon", 1)
    name = "encoder.layers.0.feed_forward.down.weight"
    gradient, x = gradients[name][0], before[name]
    step = (x * (1 - 0.01 * 0.1) - dict(model.named_parameters())[name].detach().numpy()) / 0.01
    left, _, right = np.linalg.svd(gradient, full_matrices=False)
    singular = np.diag(left.T @ step @ right.T) / (0.2 * np.sqrt(max(x.shape)))
    assert singular[:48].min() > 0.6  # the smallest of its 64 singular values are too small for five steps
    assert singular.max() < 1.3
    embedding = "encoder.embeddings.word.weight"
    expected = before[embedding] * (1 - 0.001) - 0.01 * reference_directions(
        gradients[embedding], (0.9, 0.98), 1e-6
    )
    np.testing.assert_allclose(model.word_weight.detach().numpy(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (32, 32)])
def test_muon_steps_like_that_of_torch(shape: tuple[int, int]) -> None:
    """torch computes the singular directions in bf16, so the steps differ only by its rounding."""
    random = torch.Generator().manual_seed(3)
    rows, columns = shape
    ours, theirs = nn.Linear(columns, rows, bias=False), nn.Linear(columns, rows, bias=False)
    theirs.load_state_dict(ours.state_dict())
    one = build_optimizer(ours, "muon", learning_rate=0.01, weight_decay=0.1)
    other = torch.optim.Muon(theirs.parameters(), lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        before = ours.weight.detach().clone()
        theirs.weight.data.copy_(before)
        ours.weight.grad = torch.randn(shape, generator=random)
        theirs.weight.grad = ours.weight.grad.clone()
        one.step()
        other.step()
        step, reference = ours.weight.detach() - before, theirs.weight.detach() - before
        assert (step - reference).norm() < 0.03 * reference.norm()
        assert step.square().mean().sqrt() == pytest.approx(0.2 * 0.01, rel=0.2)


def test_muon_leaves_embeddings_and_outputs_to_adamw() -> None:
    model = small_model("albert")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices = {
        names[id(p)] for group in parameter_groups(model, 0.1) if group["matrix"] for p in group["params"]
    }
    inside = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    tables = {f"encoder.embeddings.{table}.weight" for table in ("word", "position", "segment")}
    assert matrices == inside - tables - {"pair_head.weight"}


@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (16, 16)])
def test_orthogonal_matrices_have_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = orthogonalize(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(matrix)
    assert values.min() > 0.3
    assert values.max() < 1.3
    assert orthogonalize(torch.zeros(shape)).eq(0).all()


def test_biases_and_norms_do_not_decay() -> None:
    model = small_model()
    groups = parameter_groups(model, 0.1)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    for group in groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.ndim >= 2 else 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    still = {names[id(p)] for group in groups if not group["weight_decay"] for p in group["params"]}
    assert still == {name for name in names.values() if "norm" in name or name.endswith("bias")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_skipped_step_leaves_no_trace(kind: Kind, earlier: int) -> None:  # trainer-022, trainer-024
    """Two runs, one of which meets a gradient of NaN and one of 1e8 that are skipped."""
    results = []
    for poison in ([], [float("nan"), 1e8]):
        model = small_model()
        optimizer = build_optimizer(model, kind, learning_rate=0.01)
        for _ in range(earlier):
            backward(model)
            optimizer.step()
        for value in poison:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            skip_step(optimizer, torch.tensor(True))
            optimizer.step()
        skip_step(optimizer, torch.tensor(False))
        backward(model)
        optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_through_a_checkpoint(kind: Kind) -> None:
    def step(model: BertPretraining, optimizer: torch.optim.Optimizer) -> None:
        backward(model)
        optimizer.step()

    model = small_model()
    optimizer = build_optimizer(model, kind, learning_rate=0.01)
    step(model, optimizer)
    other = small_model(seed=5)
    restored = build_optimizer(other, kind, learning_rate=0.5)
    other.load_state_dict(model.state_dict())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(other, restored)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_learning_rate_is_set_in_place(kind: Kind) -> None:
    model = small_model()
    optimizer = build_optimizer(model, kind, learning_rate=0.01)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    backward(model)
    set_learning_rate(optimizer, 0.0)
    optimizer.step()
    assert all(old.equal(new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_without_gradient_stay(kind: Kind) -> None:
    linear = nn.Linear(4, 4)
    optimizer = build_optimizer(linear, kind, learning_rate=0.1)
    linear.weight.grad = torch.ones(4, 4)
    bias = linear.bias.detach().clone()
    optimizer.step()
    assert linear.bias.equal(bias)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_keeps_to_this_device_and_shares_nothing(kind: Kind) -> None:
    model = small_model()
    optimizer = build_optimizer(model, kind, learning_rate=0.01)
    backward(model)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        if "capturable" in group:
            group["capturable"] = True
    optimizer.load_state_dict(saved)
    set_learning_rate(optimizer, 0.5)
    assert all(float(group["lr"]) == pytest.approx(0.01) for group in saved["param_groups"])
    assert not any(group.get("capturable") for group in optimizer.param_groups)
    backward(model)
    optimizer.step()


def test_moments_that_do_not_fit_are_refused() -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, "adamw", learning_rate=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for name, value, message in (
        ("exp_avg", torch.zeros(1), "exp_avg has shape"),
        ("exp_avg_sq", None, "is not a float32 tensor"),
        ("surprise", torch.zeros(1), "the optimizer's state has"),
    ):
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][0][name] = value
        with pytest.raises(ValueError, match=message):
            load_moments(build_optimizer(model, "adamw", learning_rate=0.1), state)


def test_settings_are_those_of_the_config_and_not_of_the_state() -> None:
    model = nn.Linear(3, 2)
    saved = build_optimizer(model, "lamb", learning_rate=0.1, weight_decay=0.3).state_dict()
    optimizer = build_optimizer(
        model, "lamb", learning_rate=0.1, betas=(0.5, 0.6), eps=1e-3, weight_decay=0.7
    )
    load_moments(optimizer, saved)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.7, 0.0}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.5, 0.6)}
    assert {group["eps"] for group in optimizer.param_groups} == {1e-3}


def test_stable_adamw_is_adamw_while_gradients_are_alike_and_clips_a_sudden_one() -> None:  # Wortsman 2023
    steps = []
    for kind in ("adamw", "stable_adamw"):
        parameter = nn.Parameter(torch.ones(4, 4))
        holder = nn.Module()
        holder.register_parameter("weight", parameter)
        optimizer = build_optimizer(holder, kind, learning_rate=0.1, betas=(0.9, 0.99), weight_decay=0.0)
        moves = []
        for gradient in (1.0, 1.0, 1.0, 100.0):
            before = parameter.detach().clone()
            parameter.grad = torch.full_like(parameter, gradient)
            optimizer.step()
            moves.append(float((before - parameter.detach())[0, 0]))
        steps.append(moves)
    assert steps[1][:3] == pytest.approx(steps[0][:3], rel=1e-4)
    values, moment = [1.0, 1.0, 1.0, 100.0], 0.0
    for value in values:
        moment = 0.99 * moment + 0.01 * value**2
    root_mean_square = 100.0 / np.sqrt(moment / (1 - 0.99**4))
    assert root_mean_square > 1
    assert steps[1][3] == pytest.approx(steps[0][3] / root_mean_square, rel=1e-4)
