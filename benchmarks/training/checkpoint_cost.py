"""Measures the cost of a checkpoint: how long training pauses, and how long the background thread writes.

    python -m benchmarks.training.checkpoint_cost --size large --to /fast/disk/run --saves 3

The state is that of a BERT of the given size with AdamW (three fp32 numbers per parameter), on the GPU if
there is one. The stall is the time of ``save_async``. The first stall includes the allocation of the host
buffers. A training thread computes matrix products all the time, so the table also shows how much the
background work slows it down.
"""

import argparse
import statistics
import tempfile
import threading
import time

import torch

from benchmarks.peak_memory import peak_resident_bytes
from tests.trainer.states import run_state
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.reading import latest_verified
from trainer.checkpoint.store import CheckpointStore
from trainer.model.config import ModelConfig
from trainer.model.pretraining import BertPretraining

INTERVAL_SECONDS = 600.0


def state_of(size: str, device: torch.device) -> TrainingState:
    """Model and optimizer state with the true shapes."""
    with torch.device("meta"):
        model = BertPretraining(ModelConfig.model_validate({"size": size, "vocab_size": 119547}))

    def copy() -> dict[str, torch.Tensor]:
        return {name: torch.rand(p.shape, device=device) for name, p in model.state_dict().items()}

    first, second = copy(), copy()
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": first[name], "exp_avg_sq": second[name]}
        for number, name in enumerate(first)
    }
    groups = [{"lr": 1e-4, "params": list(moments)}]
    return TrainingState(dict(copy()), {"state": moments, "param_groups": groups}, run_state(0))


class Training:
    """A thread that computes and counts matrix products."""

    def __init__(self, device: torch.device) -> None:
        self._left = torch.rand(1024, 1024, device=device)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.products = 0

    def _work(self) -> None:
        while not self._stop.is_set():
            self._left @ self._left
            if self._left.is_cuda:
                torch.cuda.synchronize()
            self.products += 1

    def __enter__(self) -> "Training":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def rate(self, during: float) -> float:
        """Products per second over the next ``during`` seconds."""
        before, started = self.products, time.monotonic()
        time.sleep(during)
        return (self.products - before) / (time.monotonic() - started)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="base")
    parser.add_argument("--to", default=None, help="run folder or URI; a temporary folder by default")
    parser.add_argument("--saves", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments.size, arguments.to or folder, arguments.saves, device)


def measure(size: str, run: str, saves: int, device: torch.device) -> None:
    """Prints one line for each save and a summary."""
    state = state_of(size, device)
    parameters = sum(tensor.numel() for tensor in state.model.values())
    print(f"{size}: {parameters / 1e6:.1f} M parameters on {device}, {torch.get_num_threads()} CPU threads")
    store = CheckpointStore(run, keep=1)
    store.acquire_lease()
    stalls = []
    with Training(device) as training:
        quiet = training.rate(3.0)
        for step in range(1, saves + 1):
            started = time.monotonic()
            store.save_async(step, state)
            stalls.append(time.monotonic() - started)
            before, started = training.products, time.monotonic()
            store.wait()
            rate = (training.products - before) / (time.monotonic() - started)
            result = store.last_result
            assert result is not None
            print(
                f"save {step}: {result.size / 1e9:.2f} GB, stall {stalls[-1]:.3f} s, background"
                f" {result.seconds:.1f} s with training at {100 * rate / quiet:.0f} % of its speed"
            )
    store.close()
    started = time.monotonic()
    found = latest_verified(run)
    assert found is not None
    verified = time.monotonic() - started
    found.load()
    print(f"resume: verified in {verified:.1f} s, loaded in {time.monotonic() - started - verified:.1f} s")
    stall = statistics.median(stalls[1:])
    print(
        f"stall: {stall:.3f} s = {100 * stall / INTERVAL_SECONDS:.3f} % of one save in {INTERVAL_SECONDS:g} s"
    )
    print(f"peak memory: {peak_resident_bytes() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
