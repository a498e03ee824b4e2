"""Small builds of the bundled sample for tests, in this process or in a separate one."""

import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample"

# Four scripts, one multi-page dump, two books: seconds to build.
DUMPS = ("simplewiki-pages-articles", "arwiki-minidump-pages-articles", "ruwiki-minidump-pages-articles",
         "jawiki-minidump-pages-articles", "dewiki-minidump-pages-articles")  # fmt: skip


def config(output: Path | str, **fields: Any) -> dict[str, Any]:
    """A build config over a part of the sample. ``fields`` replace top-level ones."""
    return {
        "output": str(output),
        "seed": 7,
        "sources": [
            {
                "name": "wikipedia",
                "kind": "wikimedia",
                "paths": [str(SAMPLE / "dumps" / f"{name}.xml.bz2") for name in DUMPS],
            }
        ],
        "extraction": {"unit_bytes": 65536},
        "vocabulary": {"size": 3000, "min_count": 1},
        "instances": {"bucket_bytes": 65536, "validation_share": 0.1, "passes": 2},
        **fields,
    }


def held_out_config(output: Path | str, **fields: Any) -> dict[str, Any]:
    """A config that publishes documents, with a held-out share large enough to hold out one of the few."""
    instances = {**config(output)["instances"], "validation_share": 0.3}
    return config(output, **{"instances": instances, "publish": {"documents": True}, **fields})


def write_config(folder: Path, data: dict[str, Any], name: str = "build.yaml") -> Path:
    """``data`` as a config file (JSON is YAML)."""
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def environment() -> dict[str, str]:
    """The environment of a job that starts its own Ray."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_JOB_ID")}
    return {**kept, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}


def command(path: Path, *arguments: str) -> list[str]:
    """The job's command line."""
    return [sys.executable, str(ROOT / "pipeline" / "build_corpus.py"), "--config", str(path), *arguments]


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the job in a separate process, which starts its own Ray unless it fails earlier."""
    return subprocess.run(
        command(path, *arguments),
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


def run_here(path: Path, *arguments: str) -> int:
    """Runs the job in this process, where imports and Ray's workers are warm. Returns its exit status."""
    from pipeline.build_corpus import main

    loggers = [logging.getLogger(package) for package in ("bertmill", "cluster", "pipeline")]
    levels = [logger.level for logger in loggers]
    try:
        return main(["--config", str(path), *arguments])
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def published_files(output: Path) -> dict[str, str]:
    """Path below the output -> SHA-256, for everything except the work folder."""
    files = [path for path in sorted(output.rglob("*")) if path.is_file()]
    names = {path.relative_to(output).as_posix(): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not name.startswith("work/")
    }
