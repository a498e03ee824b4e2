"""``bertmill doctor``: what of the environment is missing, with what to do about each finding."""

import argparse
import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster import storage
from schemas.errors import BertmillError

_NEEDED = ("ray", "pyarrow", "torch", "tokenizers", "smart_open", "boto3", "zstandard", "datasets",
           "numpy", "pydantic", "yaml", "jsonschema", "safetensors", "sentencex")  # fmt: skip
_OPTIONAL = {"transformers": "needed by fine-tuning checks and to load the export there"}
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3")
_DISK_FREE_GIB = 5
_SHARED = Path("/dev/shm")  # noqa: S108 - Ray names it, nothing is written there


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``level`` is ok, warn or fail."""

    level: str
    what: str


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``doctor`` to the console command."""
    parser = commands.add_parser(
        "doctor",
        help="check the environment",
        description="Checks Python, libraries, memory, disk, GPUs, Ray and storage. Exit status 1 when "
        "something that is needed is missing.",
    )
    parser.add_argument("uris", nargs="*", metavar="URI", help="folders whose read and write access to try")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; 0 when nothing failed, else 1."""
    findings = list(examine(arguments.uris))
    for finding in findings:
        print(f"{finding.level:<5} {finding.what}")
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def examine(uris: list[str]) -> Iterator[Finding]:
    """All findings, needed things first."""
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding("ok" if supported else "fail", f"Python {version} (supported: 3.11 to 3.13)")
    for name in _NEEDED:
        yield _library(name, "fail", "run: pip install -c constraints.txt -e .")
    for name, purpose in _OPTIONAL.items():
        yield _library(name, "warn", purpose)
    yield from _machine()
    yield _ray_address()
    yield from _aws_variables(uris)
    for uri in uris:
        yield _try_storage(uri)


def _library(name: str, level: str, advice: str) -> Finding:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return Finding(level, f"{name}: {error}; {advice}")
    distribution = {"yaml": "pyyaml", "smart_open": "smart-open"}.get(name, name)
    return Finding("ok", f"{name} {importlib.metadata.version(distribution)}")


def _machine() -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding(
        "ok" if memory >= 4 else "warn", f"{os.cpu_count()} CPUs, {memory:.1f} GiB memory (4 or more)"
    )
    temp = tempfile.gettempdir()
    free = shutil.disk_usage(temp).free / 2**30
    level = "ok" if free >= _DISK_FREE_GIB else "warn"
    yield Finding(level, f"{free:.0f} GiB free below {temp}, where Ray spills (TMPDIR moves it)")
    shm = shutil.disk_usage(_SHARED).free / 2**30 if _SHARED.is_dir() else 0.0
    yield Finding("ok" if shm >= 1 else "warn", f"{shm:.1f} GiB free in {_SHARED}, where Ray keeps objects")
    import torch

    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
        yield Finding("ok", f"{torch.cuda.device_count()} GPU: {', '.join(names)}")
    else:
        yield Finding("warn", "no GPU seen by torch; training runs on the CPU with gloo")


def _ray_address() -> Finding:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Finding("ok", "RAY_ADDRESS is not set: the jobs start a Ray of their own on this machine")
    if os.environ.get("RAY_AUTH_MODE") is None:
        return Finding("warn", f"RAY_ADDRESS={address}, but RAY_AUTH_MODE is not set (token or disabled)")
    return Finding("ok", f"RAY_ADDRESS={address}, RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}")


def _aws_variables(uris: list[str]) -> Iterator[Finding]:
    given = [name for name in _AWS if os.environ.get(name)]
    if given:
        yield Finding("ok", f"set: {', '.join(given)}")
    elif any(uri.startswith("s3://") for uri in uris):
        yield Finding("warn", "no AWS variable is set; boto3 will look for a profile or an instance role")


def _try_storage(uri: str) -> Finding:
    probe = storage.join(uri, f".bertmill-doctor-{os.getpid()}")
    try:
        created = storage.put_if_absent(probe, b"probe")
        again = storage.put_if_absent(probe, b"probe")
        intact = storage.read_bytes(probe) == b"probe"
        storage.delete(probe)
    except (BertmillError, OSError) as error:
        return Finding("fail", f"{uri}: {error}")
    if not created or again or not intact:
        return Finding(
            "fail", f"{uri}: conditional writes are not honoured; two trainers could overwrite each other"
        )
    return Finding("ok", f"{uri}: read, write and conditional write work")
