"""``bertmill doctor``: checks the environment and gives a remedy for each problem."""

import argparse
import importlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from bertmill.cli.argument_types import Commands
from bertmill.findings import Finding, try_storage

_NEEDED = ("ray", "pyarrow", "torch", "tokenizers", "smart_open", "boto3", "zstandard", "datasets",
           "numpy", "pydantic", "yaml", "jsonschema", "safetensors")  # fmt: skip
_OPTIONAL = {"transformers": "needed only to load exported models with it; run: pip install transformers"}
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL_S3")
_DISK_FREE_GIB = 5
_SHARED = Path("/dev/shm")  # noqa: S108 - only its size is read


def add_parser(commands: Commands) -> None:
    """Adds ``doctor`` to the console command."""
    parser = commands.add_parser(
        "doctor",
        help="check the environment",
        description="Checks Python, libraries, memory, disk, GPUs, Ray and storage. Exit status 1 means that "
        "a requirement is missing.",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="also check what a job of this config needs: paths, sources or corpus, free space, rights,"
        " conditional writes, and that no other process runs it",
    )
    parser.add_argument("uris", nargs="*", metavar="URI", help="folders to test reading and writing in")
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings. Returns 0 when nothing failed, else 1."""
    failed = False
    for finding in chain(examine(arguments.uris), _examine_config(arguments.config)):
        print(f"{finding.level:<5} {finding.text}")
        failed = failed or finding.level == "fail"
    return int(failed)


def _examine_config(uri: str | None) -> Iterator[Finding]:
    if uri is not None:
        # Imported late: it needs torch and Ray, and the report should show their absence as a line.
        from bertmill.preflight import examine_config

        yield from examine_config(uri)


def examine(uris: list[str]) -> Iterator[Finding]:
    """All findings, requirements first."""
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
        yield try_storage(uri)


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
        "ok" if memory >= 4 else "warn",
        f"{os.cpu_count()} CPUs, {memory:.1f} GiB memory (recommended: 4 or more)",
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
        yield Finding("warn", "torch sees no GPU; training runs on the CPU with gloo")


def _ray_address() -> Finding:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Finding("ok", "RAY_ADDRESS is not set: the jobs start Ray on this machine")
    if os.environ.get("RAY_AUTH_MODE") is None:
        return Finding("warn", f"RAY_ADDRESS={address}, but RAY_AUTH_MODE is not set (token or disabled)")
    return Finding("ok", f"RAY_ADDRESS={address}, RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}")


def _aws_variables(uris: list[str]) -> Iterator[Finding]:
    given = [name for name in _AWS if os.environ.get(name)]
    if given:
        yield Finding("ok", f"set: {', '.join(given)}")
    elif any(uri.startswith("s3://") for uri in uris):
        yield Finding("warn", "no AWS variable is set; boto3 will use a profile or an instance role")
