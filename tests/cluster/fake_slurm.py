"""Replaces SLURM's ``scontrol`` and ``srun`` on one machine, as the batch scripts use them.

Like the real one, srun starts SLURM_NTASKS processes with their SLURM_PROCID and SLURM_LOCALID, forwards
SIGTERM to them, and exits with their highest status. scontrol records which jobs are requeued.
"""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(folder: Path) -> dict[str, str]:
    """An environment in which a batch script finds these commands first."""
    for name in ("srun", "scontrol"):
        command = folder / name
        command.write_text(f"#!{sys.executable}\nfrom tests.cluster import fake_slurm\nfake_slurm.{name}()\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "QUEUED_AGAIN": str(folder / "queued-again"),
    }


def scontrol() -> None:
    """``show hostnames LIST`` or ``requeue JOB``."""
    if sys.argv[1:3] == ["show", "hostnames"]:
        print(sys.argv[3])
    elif sys.argv[1] == "requeue":
        Path(os.environ["QUEUED_AGAIN"]).write_text(sys.argv[2])
    else:
        raise SystemExit(f"scontrol: {sys.argv[1:]}")


def srun() -> None:
    """Runs the command once for each task."""
    command = sys.argv[1:]
    while command[0].startswith("--"):
        command.pop(0)
    tasks = [
        subprocess.Popen(
            command, env={**os.environ, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        )
        for number in range(int(os.environ["SLURM_NTASKS"]))
    ]

    def forward(number: int, _frame: object) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    codes = [task.wait() for task in tasks]
    raise SystemExit(max(code if code >= 0 else 128 - code for code in codes))
