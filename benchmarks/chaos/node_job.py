"""The training under Ray Train for benchmarks/chaos/nodes.py, with slow workers that keep diaries.

The diaries go to the folder that CHAOS_DIARY names in the environment of the nodes, one file per process.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.chaos.faulty_trainer import ChaosTrainer, note
from schemas.errors import BertmillError
from trainer import pretrain
from trainer.launcher import ray_train as ray_launcher
from trainer.run import loop
from trainer.run.loop import Outcome

STEP_SECONDS = 0.05
"""Extra seconds per step, so that a fault hits the chosen step and not a later one."""

_work = ray_launcher.work


class SlowTrainer(ChaosTrainer):
    """A trainer that notes its attempt, and sleeps in each step."""

    def run(self) -> Any:
        """Trains, after a note of the attempt."""
        number, rank = self.attempt.number, self.ranks.rank
        note(self.diary, event="joined", attempt=number, rank=rank, process=os.getpid())
        return super().run()

    def _gradients(self, batches: Any, targets: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return super()._gradients(batches, targets)


def work(settings: dict[str, Any]) -> Outcome | BertmillError:
    """Runs in each worker."""
    name = f"{settings['config']['run']['name']}-{time.time_ns()}-{os.getpid()}.jsonl"
    path = Path(os.environ["CHAOS_DIARY"]) / name
    SlowTrainer.diary = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    mock.patch.object(loop, "Trainer", SlowTrainer).start()
    return _work(settings)


def main() -> int:
    """The driver. A separate program calls it, so that workers can import this module by name."""
    ray_launcher.work = work
    return pretrain.main(["--config", sys.argv[1]])
