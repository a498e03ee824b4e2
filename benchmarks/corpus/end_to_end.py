"""Measures a build from dump to shards on one core: MB of wikitext per second, and the share of each stage.

    python -m benchmarks.corpus.end_to_end 'FOLDER/enwiki*.xml.bz2' [--title TEXT] [--table FILE]

Every file is a separate source, so that dumps of two wikis of one language may be read together. Every stage
runs as in a build, with exact and near dedup, and with a loop in place of Ray Data. Times are processor time.
A build of a small dump runs first, so that imports and first calls are not counted.

The same run also measures `tokenizers` encode_batch on one thread, on the text of the corpus. This yardstick
compares this machine with the one where wikiextractor and LDDL were measured. There, the chain of the two
processed 0.79 MB/s of wikitext of an English sample. It is faster on pages with less text, so the table also
has an estimate from its time for the same amounts of wikitext and of text, which is the stricter comparison.
"""

import argparse
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import BertWordPieceTokenizer

from benchmarks.rates.measure_rates import cpu, measure, without_ray_data
from cluster import storage
from cluster.jobs.config_file import validate
from pipeline.config import BuildConfig

# On one core of one machine, in MB/s: wikiextractor of wikitext, LDDL of text, encode_batch of text.
WIKIEXTRACTOR, LDDL, YARDSTICK = 2.5, 0.70, 1.95
# Both, one after the other, in MB of wikitext per second of an English sample.
CHAIN = 0.79
SMALL = Path(__file__).resolve().parents[2] / "sample" / "dumps" / "simplewiki-pages-articles.xml.bz2"
_YARDSTICK_BYTES = 4_000_000


def yardstick(corpus: Path) -> float:
    """MB of text per second of encode_batch with one thread, over sentences of the corpus."""
    sentences: list[str] = []
    size = 0
    for part in sorted(corpus.glob("work/extract-*/*.parquet")):
        for document in pq.read_table(part, columns=["sentences"])["sentences"].to_pylist():
            sentences += document
            size += sum(len(sentence.encode()) for sentence in document)
        if size > _YARDSTICK_BYTES:
            break
    tokenizer = BertWordPieceTokenizer(str(corpus / "tokenizer" / "vocab.txt"), lowercase=False)
    best = float("inf")
    for _ in range(2):
        began = time.process_time()
        tokenizer.encode_batch(sentences)
        best = min(best, time.process_time() - began)
    return size / 1e6 / best


def run(paths: list[str], length: int) -> tuple[dict[str, Any], float]:
    """The figures of `measure` for one set of instances of this length, and the yardstick."""
    _run([str(SMALL)], length, 3000)
    return _run(paths, length, 30_522)


def _run(paths: list[str], length: int, pieces: int) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "output": f"{folder}/corpus",
            "sources": [
                {"name": f"dump-{number}", "kind": "wikimedia", "paths": [path]}
                for number, path in enumerate(paths)
            ],
            "extraction": {"unit_bytes": 4 << 20},
            "vocabulary": {"size": pieces},
            "dedup": {"exact": True, "near": True},
            "instances": {"lengths": [{"max_seq_length": length, "max_predictions": 20}]},
        }
        found = measure(validate(BuildConfig, fields, "arguments"))
        return found, yardstick(Path(folder) / "corpus")


def table(found: dict[str, Any], measured: float, load: float) -> str:
    """The result as Markdown."""
    seconds = {**found["seconds"], "training of the vocabulary": found["vocabulary_training_seconds"]}
    total, megabytes = sum(seconds.values()), found["wikitext_mb"]
    given = seconds["vocabulary"] + seconds["training of the vocabulary"]
    speed = measured / YARDSTICK
    flat = CHAIN * speed
    stern = speed * megabytes / (megabytes / WIKIEXTRACTOR + found["text_mb"] / LDDL)
    rows = [f"| {stage} | {spent:.1f} | {spent / total:.1%} |" for stage, spent in seconds.items()]
    rates = {
        "dump to shards": megabytes / total,
        "the same, the vocabulary given, as the chain needs it": megabytes / (total - given),
    }
    lines = [
        f"{megabytes:.1f} MB of wikitext in {found['units']} units of {found['compressed_mb']:.1f} MB: "
        f"{found['documents']:,} documents, {found['text_mb']:.1f} MB of text, {found['written_tokens']:,} "
        f"tokens in rows of 128. {cpu()}, load {load:.1f}, {datetime.now(UTC).date().isoformat()}. "
        f"At most {found['peak_gb']:.1f} GB of memory.",
        "",
        "| stage | CPU seconds | share |",
        "|---|---:|---:|",
        *rows,
        f"| all | {total:.1f} | 100.0% |",
        "",
        f"| | MB/s of wikitext, one core | x the chain's {CHAIN} MB/s | x the chain by wikitext and text |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {rate:.2f} | {rate / flat:.1f} | {rate / stern:.1f} |"
            for name, rate in rates.items()
        ),
        f"| wikiextractor + LDDL, estimated for this machine | | {flat:.2f} MB/s | {stern:.2f} MB/s |",
        "",
        f"Where encode_batch did {YARDSTICK} MB/s of text, wikiextractor did {WIKIEXTRACTOR} of wikitext and "
        f"LDDL, without dedup, {LDDL:.2f} of text. encode_batch did {measured:.2f} MB/s in this run.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints. With --table, adds the result to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="+", help="files or globs of .xml.bz2")
    parser.add_argument("--title", help="of the table")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    paths = sorted(path for pattern in arguments.dumps for path in storage.expand_glob(pattern))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    without_ray_data()
    load = os.getloadavg()[0]
    found, measured = run(paths, 128)
    text = table(found, measured, load)
    print(text)
    if arguments.table:
        with arguments.table.open("a") as file:
            file.write((f"## {arguments.title}\n\n" if arguments.title else "") + text + "\n")


if __name__ == "__main__":
    main()
