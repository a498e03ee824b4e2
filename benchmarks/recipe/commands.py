"""The commands that the stages run: one child process at a time, which receives the signals of this one."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.recipe.settings import REPOSITORY, Call
from cluster.jobs import shutdown
from schemas.errors import BertmillError

_POLL_SECONDS = 0.3


class Stopped(Exception):  # noqa: N818 - not an error
    """A signal stopped a child process, which saved its state."""


def run(command: Sequence[str], name: str) -> None:
    """Runs a command. Raises BertmillError when it fails, Stopped when a signal ended it."""
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{path}" if path else str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }
    if shutdown.requested():
        raise Stopped(name)
    with subprocess.Popen(command, env=environment) as child:
        status, signaled = None, False
        while status is None:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(_POLL_SECONDS)
            if shutdown.requested() and not signaled:
                # After Ctrl-C in a terminal this is the second signal, which changes nothing.
                child.send_signal(signal.SIGTERM)
                signaled = True
    if signaled or status == shutdown.EXIT_STOPPED:
        raise Stopped(name)
    if status:
        raise BertmillError(f"{name}: ended with status {status}; its messages are above")


def default_launcher(cards: int) -> str:
    """Ray where it is installed, otherwise torchrun, or a single process for one card."""
    if importlib.util.find_spec("ray") is not None:
        return "ray"
    return "torchrun" if cards > 1 else "local"


def pretraining(call: Call, overrides: Sequence[str]) -> list[str]:
    """The command of a pretraining with the recipe's config."""
    script = str(REPOSITORY / "trainer" / "pretrain.py")
    config = str(REPOSITORY / "configs" / "recipes" / f"{call.recipe.name}-model.yaml")
    start = [sys.executable]
    if call.launcher == "torchrun":
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(call.cards)]
    cpus = 1 if call.cpu else max(1, (os.cpu_count() or 1) // call.cards)
    workers = [
        f"--workers.num_workers={call.cards}",
        f"--workers.use_gpu={str(not call.cpu).lower()}",
        f"--workers.cpus_per_worker={cpus}",
    ]
    return [*start, script, "--launcher", call.launcher, "--config", config, *workers, *overrides]


def bertmill(*arguments: str) -> list[str]:
    """A subcommand of the console command."""
    return [sys.executable, "-m", "bertmill", *arguments]
