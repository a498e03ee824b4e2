"""The storage under a chaos run: a local folder, or a real S3 server behind a proxy that can fail."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import TracebackType

from tests.support.fault_proxy import FaultProxy
from tests.support.s3_server import BUCKET, S3Server

_FAULTS = ("503", "500", "reset", "lost", "cut", "delay 0.2")


class Store:
    """The storage of the runs. ``base`` is their common folder."""

    def __init__(self, place: str, folder: Path) -> None:
        self._server = S3Server(folder / "s3") if place == "s3" else None
        self.base = f"s3://{BUCKET}/runs" if self._server else str(folder / "runs")
        self._bad = multiprocessing.Value("i", 0)
        self._proxy: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> "Store":
        if self._server is not None:
            self._server.start()
            # In a separate process, because the ranks fork from this one, which must not have threads.
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            self._proxy = context.Process(target=_serve, args=(self._server.port, self._bad, theirs))
            self._proxy.start()
            os.environ.update(self._server.environment)
            os.environ["AWS_ENDPOINT_URL_S3"] = ours.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.join()
        if self._server is not None:
            self._server.stop()

    def freeze(self, seconds: float) -> None:
        """Stops the answers of the server for a while."""
        assert self._server is not None
        self._server.freeze()
        time.sleep(seconds)
        self._server.thaw()

    def restart(self) -> None:
        """Kills the server and starts a new one over the same data."""
        assert self._server is not None
        self._server.restart()

    def break_network(self) -> None:
        """Makes one request in four fail from now on."""
        self._bad.value = 1

    def heal(self) -> None:
        """Ends the network faults."""
        self._bad.value = 0


def _serve(port: int, bad: "Synchronized[int]", pipe: "multiprocessing.connection.Connection") -> None:
    generator = random.Random(11)

    def plan(_number: int, _method: str, _path: str) -> str:
        return generator.choice(_FAULTS) if bad.value and generator.random() < 0.25 else "pass"

    with FaultProxy(port, plan) as proxy:
        pipe.send(proxy.endpoint)
        signal.pause()
