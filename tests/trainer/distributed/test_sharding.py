"""Real ranks share weights, gradients and moments (data_parallel: fsdp), and train what DDP trains."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.jobs.config_file import load_config
from schemas.errors import ConfigError
from tests.trainer.runs import TINY, Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig

MODELS: dict[str, dict[str, Any]] = {
    # Without dropout, whose masks depend on the number of ranks.
    "post-norm": {"layers": 2, "hidden_dropout": 0.0},
    "pre-norm": {"style": "modern", "pair_objective": "nsp", "segments": 2, "layers": 2},
    "albert": {"style": "albert", "embedding_size": 16, "pair_objective": "nsp", "layers": 2},
}
OPTIMIZERS = {"post-norm": "adamw", "pre-norm": "stable_adamw", "albert": "lamb"}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    return write_corpus(folder, shard_rows=(90, 66), lengths=(32,), validation_rows=(40,))


def config_of(folder: Path, manifest: Path, name: str, **changes: Any) -> Path:
    """12 steps of three micro-batches on each of two ranks, with everything that touches weights."""
    fields = {
        "model": {**TINY, **MODELS[name]},
        "optimizer": {"kind": OPTIMIZERS[name]},
        "phases": [phase(32, 16, 64, steps=12)],
        "ema": 0.9,
        "evaluation": {"every_steps": 6, "ema": True},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    return write_config(folder, train_config(folder, manifest, **fields))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"optimizer": {"kind": "muon"}}, "optimizer.kind: muon needs whole matrices"),
        ({"checkpoints": {"format": "whole"}}, "checkpoints.format: with data_parallel fsdp no rank has all"),
        ({"fit_micro_batch": True}, "fit_micro_batch: with data_parallel fsdp no rank can try"),
        ({"stability": {"check_ranks_every": 5}}, "stability.check_ranks_every: .* no copies to compare"),
    ],
)
def test_settings_that_need_whole_weights_are_refused(
    tmp_path: Path, manifest: Path, changes: dict[str, Any], text: str
) -> None:
    config = config_of(tmp_path, manifest, "post-norm", data_parallel="fsdp", **changes)
    with pytest.raises(ConfigError, match=text):
        load_config(TrainConfig, str(config), [])


def test_a_single_rank_shards_nothing(tmp_path: Path, manifest: Path) -> None:
    Group(config_of(tmp_path, manifest, "post-norm", data_parallel="fsdp")).finish()
    (started,) = History(tmp_path / "runs" / "run").events("started")
    assert "data_parallel" not in started


def trained(folder: Path, manifest: Path, name: str, **changes: Any) -> History:
    Group(config_of(folder, manifest, name, **changes), ranks=2).finish()
    return History(folder / "runs" / "run")


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory, manifest: Path, name: str) -> History:
    return trained(tmp_path_factory.mktemp("ddp"), manifest, name)


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory, manifest: Path, name: str) -> History:
    return trained(tmp_path_factory.mktemp("fsdp"), manifest, name, data_parallel="fsdp")


def close(one: History, other: History, tolerance: float = 1e-4) -> None:
    """The same data, and the same figures up to rounding."""
    assert one.samples() == other.samples()
    assert one.figures().keys() == other.figures().keys()
    for field in ("loss", "grad_norm"):
        figures = [[record[field] for record in history.figures().values()] for history in (one, other)]
        assert figures[0] == pytest.approx(figures[1], rel=tolerance)


def held_out(history: History) -> list[float]:
    return [
        record[group]["all"]["loss"]
        for record in history.events("evaluated")
        for group in ("held_out", "held_out_ema")
    ]


def test_losses_and_held_out_losses_are_those_of_ddp(ddp: History, fsdp: History) -> None:
    close(fsdp, ddp)
    assert len(held_out(ddp)) == 8  # of two ranks
    assert held_out(fsdp) == pytest.approx(held_out(ddp), rel=1e-4)
    assert {record["data_parallel"] for record in ddp.events("started")} == {"ddp"}
    assert {record["data_parallel"] for record in fsdp.events("started")} == {"fsdp"}


def test_checkpoints_hold_what_those_of_ddp_hold(ddp: History, fsdp: History) -> None:
    states = []
    for history in (ddp, fsdp):
        checkpoint = latest_verified(history.events("started")[0]["config"]["run"]["storage"] + "/run")
        assert checkpoint is not None
        with checkpoint:
            states.append(checkpoint.load())
    one, other = states
    assert one.model.keys() == other.model.keys()
    assert one.ema.keys() == other.ema.keys()
    for tensors, others in ((one.model, other.model), (one.ema, other.ema)):
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-4)
    assert one.optimizer["state"].keys() == other.optimizer["state"].keys()
    for number, moments in one.optimizer["state"].items():
        found = other.optimizer["state"][number]
        assert {key: value.shape for key, value in moments.items()} == {
            key: value.shape for key, value in found.items()
        }
        assert moments["step"] == found["step"] == 12


@pytest.mark.parametrize("name", ["post-norm"], scope="module")
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, manifest: Path, name: str, fsdp: History
) -> None:
    config = config_of(tmp_path, manifest, name, data_parallel="fsdp")
    Group(config, ranks=2, fault="kill:all:5").finish(-signal.SIGKILL, -signal.SIGKILL)
    assert "resumes after step 4" in Group(config, ranks=2).finish()
    history = History(tmp_path / "runs" / "run")
    assert history.losses() == fsdp.losses()
    assert history.events("weights") == [
        {**event, "attempt": 2, "time": history.events("weights")[number]["time"]}
        for number, event in enumerate(fsdp.events("weights"))
    ]


@pytest.mark.parametrize("name", ["post-norm"], scope="module")
def test_a_run_changes_between_ddp_and_fsdp_and_the_number_of_ranks(
    tmp_path: Path, manifest: Path, name: str, ddp: History
) -> None:
    config = config_of(tmp_path, manifest, name, data_parallel="fsdp", recompute_layers=1)
    Group(config, ranks=2, fault="kill:all:5").finish(-signal.SIGKILL, -signal.SIGKILL)
    config = config_of(tmp_path, manifest, name, data_parallel="ddp")
    Group(config, ranks=1, fault="kill:all:9").finish(-signal.SIGKILL)
    config = config_of(tmp_path, manifest, name, data_parallel="fsdp", recompute_layers=1)
    assert "resumes after step 8" in Group(config, ranks=2).finish()
    close(History(tmp_path / "runs" / "run"), ddp)


@pytest.mark.parametrize("name", ["post-norm"], scope="module")
def test_gradients_in_bf16_give_nearly_the_same_losses(
    tmp_path: Path, manifest: Path, name: str, ddp: History
) -> None:
    history = trained(tmp_path, manifest, name, data_parallel="fsdp", gradient_exchange="bf16")
    assert history.losses() != ddp.losses()
    close(history, ddp, 2e-2)
