"""Lets a job save its work after ``ray job stop``, which kills a job's processes three seconds after SIGTERM.

Ray kills the entry process and its descendants, and only the cluster's own settings can make it wait longer.
So the entry process starts the job in a process that is not its descendant, passes SIGTERM on, and returns
its exit status. When Ray kills the entry process, the job has received SIGTERM, saves, and exits.
"""

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
_LONG_ENOUGH = 60
_CHECK_SECONDS = 1.0


def run_job(main: Callable[[], int]) -> int:
    """The exit status of ``main``, which outlives the entry process of a submitted Ray job.

    In any other process, and if the cluster waits long enough, calls ``main`` directly. Call it before
    starting threads.
    """
    wait = os.environ.get(_WAIT, "")
    if _JOB not in os.environ or (wait.isdigit() and int(wait) >= _LONG_ENOUGH):
        return main()
    return run_detached(main)


def run_detached(main: Callable[[], int]) -> int:
    """As `run_job`, in any process."""
    status_read, status_write = os.pipe()
    alive_read, alive_write = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(status_read)
        os.close(alive_write)
        os.setsid()
        worker = os.fork()
        if worker:
            os.write(status_write, f"{worker}\n".encode())
            os._exit(0)
        _work(main, status_write, alive_read)
    os.close(status_write)
    os.close(alive_read)
    os.waitpid(middle, 0)
    with os.fdopen(status_read, "rb", buffering=0) as status:
        worker = int(status.readline())

        def pass_on(number: int, frame: FrameType | None) -> None:
            del frame
            os.kill(worker, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        text = status.read()
    # A killed process (for example by the OOM killer) has written nothing.
    return int(text) if text else 128 + signal.SIGKILL


def _work(main: Callable[[], int], status: int, alive: int) -> None:
    """The body of the detached process. Does not return."""
    watcher = os.fork()
    if watcher == 0:
        os.close(status)
        _watch(alive)
    os.close(alive)
    code = 1
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # must not return into the entry process's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(watcher, signal.SIGKILL)
        with suppress(BrokenPipeError):  # the entry process was killed
            os.write(status, str(code).encode())
        os._exit(code)


def _watch(alive: int) -> None:
    """Sends SIGTERM to the job when the entry process has ended, and exits with the job."""
    work = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.getppid() == work:
        # No process writes to the pipe. Its end shows that the entry process is dead.
        if select.select([alive], [], [], _CHECK_SECONDS)[0]:
            os.kill(work, signal.SIGTERM)
            break
    os._exit(0)
