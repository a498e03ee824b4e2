"""Optimizers on a CUDA device: their steps are those of the CPU, also when a CUDA graph captured them."""

from typing import Any, get_args

import pytest
import torch

from tests.trainer.models import small_model
from trainer.optim.optimizers import Kind, build_optimizer, set_learning_rate, skip_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def updated(kind: Kind, device: str, *, captured: bool = False) -> list[torch.Tensor]:
    """Parameters after ten steps with gradients drawn on the CPU and one skipped step."""
    model = small_model().to(device)
    optimizer: Any = build_optimizer(model, kind, learning_rate=0.01)
    flag = torch.zeros((), device=device)
    skip_step(optimizer, flag)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    graph = None
    generator = torch.Generator().manual_seed(0)
    for step in range(10):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(torch.randn(parameter.shape, generator=generator))
        set_learning_rate(optimizer, 0.01 / (step + 1))
        flag.fill_(step == 4)
        optimizer.found_inf.copy_(flag)
        if not captured or step < 1:
            optimizer.step()
        elif graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            graph.replay()
        else:
            graph.replay()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_steps_on_the_gpu_are_those_of_the_cpu(kind: Kind) -> None:
    tolerance = 2e-2 if kind == "muon" else 1e-5  # its products are bf16 on a GPU
    for gpu, cpu in zip(updated(kind, "cuda"), updated(kind, "cpu"), strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_captured_step_is_a_step(kind: Kind) -> None:  # trainer-054
    for captured, plain in zip(updated(kind, "cuda", captured=True), updated(kind, "cuda"), strict=True):
        torch.testing.assert_close(captured, plain, rtol=0, atol=1e-6)
