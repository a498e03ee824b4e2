"""Compares three gigabytes of text in one unit and two buckets with the same text in small units.

    python -m benchmarks.corpus.one_block [--gigabytes 3] [--folder FOLDER]

A string column of Arrow holds 2 GiB and a list column 2^31 values. A larger block fails or, worse, does not
fail. The script draws documents from the sentences of the bundled books, so that all differ, and writes them
to one file. It reads the file as one unit and in units of 64 MiB. The shards must have the same bytes, and
`bertmill verify` must find nothing. Memory is that of the largest process, read four times a second: seven
bytes for each byte of text in a bucket, where buckets have 64 MiB by default.
"""

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ROOT / "sample/bookcorpus_sentences/books_en.txt.gz"
_DOCUMENT_SENTENCES = (10, 80)
_SEED = 28


def write_text(path: Path, size: int) -> int:
    """Writes documents of at least ``size`` bytes of text, one JSON object per line. Returns their number."""
    lines = gzip.decompress(SENTENCES.read_bytes()).decode().splitlines()
    sentences = [line for line in lines if len(line) > 20]
    generator = np.random.default_rng(_SEED)
    written = documents = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            drawn = generator.integers(len(sentences), size=generator.integers(*_DOCUMENT_SENTENCES))
            text = " ".join(sentences[number] for number in drawn)
            file.write(json.dumps({"id": str(documents), "lang": "en", "text": text}) + "\n")
            written += len(text.encode())
            documents += 1
    return documents


def config(text: Path, output: Path, unit_bytes: int, bucket_bytes: int) -> dict[str, Any]:
    """A build of one file with exact and near dedup."""
    return {
        "output": str(output),
        "sources": [{"name": "text", "kind": "jsonl", "paths": [str(text)]}],
        "extraction": {"unit_bytes": unit_bytes},
        "vocabulary": {"size": 4000},
        "dedup": {"near": True},
        "instances": {
            "bucket_bytes": bucket_bytes,
            "lengths": [{"max_seq_length": 512, "max_predictions": 77}],
        },
    }


def largest_process(root: psutil.Process, stop: threading.Event) -> int:
    """The peak of private bytes of any process below ``root`` until ``stop``.

    Memory that a process maps from the object store counts for every such process, so it is left out.
    """
    most = 0
    while not stop.wait(0.25):
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                memory = process.memory_info()
                most = max(most, memory.rss - memory.shared)
    return most


def build(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Runs the job and `bertmill verify`. Returns seconds, memory and counts of the output."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    began, stop, most = time.monotonic(), threading.Event(), [0]
    words = [sys.executable, "pipeline/build_corpus.py", "--config", str(path), "--cpus", "1"]
    with subprocess.Popen(words, cwd=ROOT) as job:
        watch = threading.Thread(target=lambda: most.append(largest_process(psutil.Process(job.pid), stop)))
        watch.start()
        status = job.wait()
        stop.set()
        watch.join()
    if status != 0:
        raise SystemExit(f"the build ended with {status}")
    seconds = time.monotonic() - began
    output = Path(settings["output"])
    subprocess.run([sys.executable, "-m", "bertmill", "verify", str(output)], cwd=ROOT, check=True)
    shards = sorted(output.glob("data/**/*.parquet"))
    hashes = {str(shard.relative_to(output)): _sha256(shard) for shard in shards}
    return {
        "minutes": round(seconds / 60, 1),
        "largest process, GB": round(max(most) / 1e9, 2),
        "units": len(list(output.glob("work/extract-*/*.done.json"))),
        "shards": len(shards),
        "bytes": sum(shard.stat().st_size for shard in shards),
        "sha256": hashlib.sha256(json.dumps(hashes).encode()).hexdigest(),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Prints a JSON line for each variant and whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--bucket-gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        text = folder / "text.jsonl"
        documents = write_text(text, int(arguments.gigabytes * 1e9))
        print(json.dumps({"documents": documents, "text file": text.stat().st_size}), flush=True)
        bucket = int(arguments.bucket_gigabytes * 1e9)
        seen = []
        for way, unit in (("one unit", 1 << 40), ("units of 64 MiB", 64 << 20)):
            seen.append(build(config(text, folder / way.replace(" ", "-"), unit, bucket), folder))
            print(json.dumps({"read as": way, **seen[-1]}), flush=True)
    if seen[0]["sha256"] != seen[1]["sha256"]:
        raise SystemExit("the shards differ")


if __name__ == "__main__":
    main()
