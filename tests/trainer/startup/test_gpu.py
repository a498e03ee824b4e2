"""The choice of matmul algorithms is kept with the run. It needs a CUDA device."""

from pathlib import Path

import pytest
import torch

from tests.trainer.models import small_config
from tests.trainer.runs import phase, train_config
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.startup.kernels import choose_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_run_keeps_its_algorithms_until_their_file_is_damaged_or_the_setup_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, ranks = small_config("bert"), single_rank(torch.device("cuda", 0))
    file = tmp_path / "kernels.json"

    def choose(tokens: int) -> bytes:
        config = train_config(
            tmp_path,
            "manifest.json",
            kernels="fused",
            precision="bf16",
            phases=[phase(32, 16, tokens, steps=1)],
        )
        kernel = choose_kernels(TrainConfig.model_validate(config), model, str(tmp_path), ranks)
        assert kernel.name == "fused", kernel.reason
        return file.read_bytes()

    first = choose(512)
    assert choose(512) == first
    assert not caplog.records
    file.write_bytes(first.replace(b'"algorithms"', b'"others"'))
    choose(512)
    assert f"{file} is damaged" in caplog.text
    choose(1024)
    assert f"{file} differs in ['tokens']" in caplog.text
