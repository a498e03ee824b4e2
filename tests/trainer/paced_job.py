"""The training under Ray Train, with a pause in each step of its workers.

Without it, a tiny model makes thousands of steps, with all CPUs, while Ray notices a node that comes or goes.
"""

import sys
import time
from typing import Any
from unittest import mock

from schemas.errors import BertmillError
from trainer import pretrain
from trainer.launcher import ray_train
from trainer.run import loop
from trainer.run.loop import Outcome

STEP_SECONDS = 0.1

_work = ray_train.work


class PacedTrainer(loop.Trainer):
    """A trainer that sleeps in each step."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._true_gradients = self.update.gradients
        vars(self.update).update(gradients=self._gradients)

    def _gradients(self, batches: Any, targets: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self._true_gradients(batches, targets)


def work(settings: dict[str, Any]) -> Outcome | BertmillError:
    """Runs in each worker."""
    mock.patch.object(loop, "Trainer", PacedTrainer).start()
    return _work(settings)


def main() -> int:
    """The driver. A separate program calls it, so that workers can import this module by name."""
    ray_train.work = work
    return pretrain.main(["--config", sys.argv[1]])
