"""The exchange of gradients through NCCL, on one CUDA device."""

from pathlib import Path

import pytest
import torch

from trainer.distributed.gradients import GradientSum, data_parallel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU = torch.device("cuda")


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_in_bf16_go_through_nccl(tmp_path: Path, overlap: bool) -> None:
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(640, 1001), torch.nn.GELU(), torch.nn.Linear(1001, 3)
        ).to(GPU)
        wrapped = data_parallel(module, "bf16") if overlap else module
        rows = torch.randn(64, 640, device=GPU)
        after = None if overlap else GradientSum(list(module.parameters()), "bf16")
        for _ in range(3):  # the buffers of a step are those of the step before
            module.zero_grad(set_to_none=True)
            wrapped(rows).square().sum().backward()
            if after is not None:
                after.replace()
            found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
            expected = torch.autograd.grad(module(rows).square().sum(), list(module.parameters()))
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.equal(ours.bfloat16().float())
                torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    finally:
        torch.distributed.destroy_process_group()
