"""The training under Ray Train, with a pause in each step of its workers.

Without it, a tiny model makes thousands of steps, with all CPUs, while Ray notices a node that comes or goes.
The arguments are the config and, optionally, the last attempt with pauses.
"""

import sys
import time
from functools import partial
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
    """A trainer that sleeps in each step of the attempts up to ``last_paced``."""

    def __init__(self, *arguments: Any, last_paced: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.attempt.number > last_paced:
            return
        self._true_gradients = self.update.gradients
        vars(self.update).update(gradients=self._gradients)

    def _gradients(self, batches: Any, targets: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self._true_gradients(batches, targets)


def work(settings: dict[str, Any], last_paced: float) -> Outcome | BertmillError:
    """Runs in each worker."""
    mock.patch.object(loop, "Trainer", partial(PacedTrainer, last_paced=last_paced)).start()
    return _work(settings)


def main() -> int:
    """The driver. A separate program calls it, so that workers can import this module by name."""
    config, *last_paced = sys.argv[1:]
    ray_train.work = partial(work, last_paced=float(*last_paced or ["inf"]))
    return pretrain.main(["--config", config])
