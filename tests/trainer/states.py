"""Small but complete training states, and helpers to compare states and to damage checkpoints."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from cluster import storage
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.manifest import CorpusReference, Position, RunState, SpikeGuardState
from trainer.checkpoint.store import CheckpointStore


def run_state(step: int, width: int = 16) -> RunState:
    """The state of the run in a checkpoint of TinyTraining."""
    return RunState(
        position=Position(step=step, tokens=4 * step),
        spike_guard=SpikeGuardState(),
        identity={"seed": 0},
        config={"width": width},
        model={},
        corpus=CorpusReference(uri="corpus/manifest.json", sha256="0" * 64),
    )


class TinyTraining:
    """A two-layer network with AdamW whose steps depend on the step number only."""

    def __init__(self, width: int = 16, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.step_number = 0
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 2))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self._width = width

    def step(self, count: int = 1) -> None:
        """Trains on batches that follow from the step number."""
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.step_number)
            loss = self.model(torch.randn(4, self._width, generator=generator)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step_number += 1

    def state(self) -> TrainingState:
        """The state to put into a checkpoint."""
        run = run_state(self.step_number, self._width)
        return TrainingState(self.model.state_dict(), self.optimizer.state_dict(), run)

    def restore(self, state: TrainingState) -> None:
        """Continues from a loaded state."""
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(dict(state.optimizer))
        self.step_number = state.run.position.step


def assert_equal(left: Any, right: Any) -> None:
    """Equality to the bit, through nested containers."""
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
        assert left.dtype == right.dtype
    elif isinstance(left, TrainingState):
        for field in dataclasses.fields(left):
            assert_equal(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


def saved_steps(run: str) -> list[int]:
    """Steps of the committed checkpoints, newest first."""
    return [folder.step for folder in list_folders(run) if folder.committed]


def folder_of(run: str, step: int) -> str:
    """URI of the newest committed folder of a step."""
    return next(folder.uri for folder in list_folders(run) if folder.committed and folder.step == step)


def reasons(caplog: Any) -> str:
    """All messages that were logged as warnings or errors."""
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)


def scratch_folders(temporary: Path) -> list[Path]:
    """Our temporary folders that are not empty."""
    found = [path for kind in temporary.glob("bertmill-*") for path in kind.iterdir()]
    return [path for path in found if path.is_dir()]


def flip_byte(uri: str, position: int) -> None:
    """Changes one bit pattern in the middle of a stored file."""
    data = bytearray(storage.read_bytes(uri))
    data[position] ^= 0x10
    storage.put_bytes(uri, bytes(data))


def save_steps(run: str, steps: list[int], keep: int = 3) -> TinyTraining:
    """A finished attempt with checkpoints at ``steps``."""
    training = TinyTraining()
    store = CheckpointStore(run, keep=keep)
    store.acquire_lease()
    for step in steps:
        training.step(step - training.step_number)
        store.save_async(step, training.state())
    store.close()
    return training
