"""Sharded weights on two GPUs: fused layers, NCCL, recomputed layers."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.distributed.ranks import join_torchrun, leave
from trainer.hooks import Hooks
from trainer.monitoring.records import LogRecord, Started, StepRecord
from trainer.run.loop import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

RANKS = 2
MODEL = {
    "size": "custom", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256,
    "max_positions": 64,
}  # fmt: skip
PRE_NORM = {**MODEL, "style": "modern", "pair_objective": "nsp", "segments": 2}
ALBERT = {**MODEL, "style": "albert", "embedding_size": 64, "pair_objective": "nsp"}
FSDP = {"data_parallel": "fsdp"}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp-beside": {"overlap_gradients": True},
    "ddp-bf16": {"gradient_exchange": "bf16"},
    "fsdp": FSDP,
    "fsdp-again": FSDP,
    "fsdp-recomputed": {**FSDP, "recompute_layers": 1},
    "fsdp-bf16": {**FSDP, "gradient_exchange": "bf16", "compile": True},
    "fsdp-plain": {**FSDP, "kernels": "plain"},
    "pre-norm-ddp": {"model": PRE_NORM},
    "pre-norm-fsdp": {**FSDP, "model": PRE_NORM},
    "albert-ddp": {"model": ALBERT},
    "albert-fsdp": {**FSDP, "model": ALBERT},
}


def config_of(folder: Path, name: str) -> TrainConfig:
    """8 steps of several micro-batches on each of two ranks."""
    phase = {
        "max_seq_length": 32, "global_batch": 64, "micro_batch_tokens": 512, "steps": 8,
        "learning_rate": 5e-3,
    }  # fmt: skip
    fields = {
        "run": {"name": name, "storage": str(folder / "runs")},
        "data": {"manifest": str(folder / "corpus" / "manifest.json")},
        "model": MODEL, "precision": "bf16", "kernels": "fused", "phases": [phase],
        "evaluation": {"every_steps": 8, "ema": True}, "ema": 0.9,
        "logging": {"every_steps": 1, "trackers": []}, "workers": {"use_gpu": True},
    }  # fmt: skip
    return TrainConfig.model_validate({**fields, **RUNS[name]})


def one_rank(rank: int, folder: Path, port: int) -> None:
    """Makes all runs in one process, because most of the time is that of its start."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = join_torchrun(300, use_gpu=True)
    found: dict[str, Any] = {}
    for name in RUNS:
        records: list[LogRecord] = []
        train(config_of(folder, name), ranks, Hooks(on_record=records.append))
        found[name] = {
            "losses": [record.loss for record in records if isinstance(record, StepRecord)],
            "kernels": [record.kernel.name for record in records if isinstance(record, Started)],
        }
    if rank == 0:
        torch.save(found, folder / "found.pt")
    leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder: Path = tmp_path_factory.mktemp("sharded")
    write_corpus(folder / "corpus", shard_rows=(90, 66), lengths=(32,), validation_rows=(20,))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(one_rank, (folder, port), nprocs=RANKS)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """Losses and kernels of each run."""
    return dict(torch.load(folder / "found.pt"))


def weights(folder: Path, name: str) -> dict[str, Tensor]:
    checkpoint = latest_verified(str(folder / "runs" / name))
    assert checkpoint is not None
    with checkpoint:
        return dict(checkpoint.load().model)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ddp-beside", "ddp"), ("ddp-bf16", "ddp"),
        ("fsdp", "ddp"), ("fsdp-bf16", "ddp"), ("fsdp-plain", "ddp"),
        ("pre-norm-fsdp", "pre-norm-ddp"), ("albert-fsdp", "albert-ddp"),
    ],
)  # fmt: skip
def test_losses_are_those_of_ddp(found: dict[str, Any], one: str, other: str) -> None:
    tolerance = 0.02 if one in ("ddp-bf16", "fsdp-bf16", "fsdp-plain") else 5e-3
    assert len(found[one]["losses"]) == 8
    assert found[one]["losses"] == pytest.approx(found[other]["losses"], rel=tolerance)
    assert found[one]["kernels"] == ["varlen" if one == "fsdp-plain" else "fused"]


@pytest.mark.parametrize("name", ["fsdp-again", "fsdp-recomputed"])
def test_equal_seeds_give_equal_bits(folder: Path, found: dict[str, Any], name: str) -> None:
    first, other = weights(folder, "fsdp"), weights(folder, name)
    assert first.keys() == other.keys()
    assert all(tensor.equal(other[key]) for key, tensor in first.items())
    assert found["fsdp"]["losses"] == found[name]["losses"]
