"""Trains in one process, for tests of the loop."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import Trainer


def run(config: Any, stop_after: int | None = None, monkey: Callable[[Trainer], None] | None = None) -> Any:
    """Trains until ``stop_after`` steps, when it requests a stop. ``monkey`` changes the trainer before."""
    calls = itertools.count()
    hooks = Hooks(stop_requested=lambda: stop_after is not None and next(calls) >= stop_after - 1)
    with ExitStack() as cleanup:
        trainer = Trainer(TrainConfig.model_validate(config), single_rank(), hooks, cleanup)
        if monkey is not None:
            monkey(trainer)
        return trainer.run()


def weights(outcome: Any) -> Any:
    checkpoint = latest_verified(outcome.run_uri)
    assert checkpoint is not None
    return checkpoint.load()


def equal(one: Any, other: Any) -> bool:
    return one.model.keys() == other.model.keys() and all(
        torch.equal(one.model[name], other.model[name]) for name in one.model
    )
