"""Measures the memory and CPU time of a shuffle's driver, with files and with Ray Data's hash shuffle.

python -m benchmarks.corpus.shuffle_bookkeeping [--maps 4096] [--buckets 23550]
    [--ray-maps 64] [--ray-buckets 512]

The rows are tiny, so the costs are those of bookkeeping. Ten passes over 104 Wikipedias have 4,096 map tasks
and 23,550 buckets. Ray's shuffle gets fewer. The last columns are per pair of a map task and a bucket or
partition.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peak_memory import peak_resident_bytes

ROWS_PER_MAP = 64
NUMBERS = pa.schema([pa.field("number", pa.int64())])


@dataclass(frozen=True)
class Cost:
    """The resources that the driver of one shuffle used."""

    kind: str
    maps: int
    buckets: int
    wall_seconds: float
    driver_cpu_seconds: float
    driver_growth_mb: float
    """Growth of the peak of the driver's resident memory from before the shuffle."""

    def row(self) -> str:
        """A row of the table."""
        pairs = self.maps * self.buckets / 1e6
        cells = (
            self.kind,
            f"{self.maps:,}",
            f"{self.buckets:,}",
            f"{self.wall_seconds:,.0f} s",
            f"{self.driver_cpu_seconds:,.1f} s",
            f"{self.driver_growth_mb:,.0f} MB",
            f"{self.driver_cpu_seconds / pairs:,.2f} us",
            f"{self.driver_growth_mb / pairs:,.0f} B",
        )
        return f"| {' | '.join(cells)} |"


def table_of(number: int, buckets: int) -> pa.Table:
    """The rows of one map task: 64 of them, in buckets that its number chooses."""
    chosen = np.random.default_rng(number).integers(0, buckets, ROWS_PER_MAP)
    return pa.table({"bucket": chosen, "number": np.full(ROWS_PER_MAP, number)})


def through_files(maps: int, buckets: int) -> int:
    """Runs the build's shuffle, one map task per item. Returns the rows that arrive."""
    from pipeline.engine.ray_data import GROUP_BYTES
    from pipeline.engine.shuffle import Shuffle

    def emit(number: int) -> Iterator[pa.Table]:
        yield table_of(number, buckets)

    def reduce(_bucket: int, table: pa.Table) -> int:
        return int(table.num_rows)

    with tempfile.TemporaryDirectory() as folder:
        shuffle = Shuffle(f"{folder}/shuffle", NUMBERS, buckets)
        return sum(shuffle.run(range(maps), emit, reduce, np.arange(buckets), lambda _: GROUP_BYTES))


def through_ray(maps: int, buckets: int) -> int:
    """Runs ``groupby().map_groups()`` with a partition for each bucket. Returns the rows that arrive."""
    import ray

    def emit(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from table_of(row["item"], buckets).to_pylist()

    def reduce(group: pa.Table) -> pa.Table:
        return pa.table({"rows": [group.num_rows]})

    emitted = ray.data.range(maps, override_num_blocks=maps).rename_columns({"id": "item"}).flat_map(emit)
    grouped = emitted.groupby("bucket", num_partitions=buckets)
    return sum(int(row["rows"]) for row in grouped.map_groups(reduce, batch_format="pyarrow").iter_rows())


KINDS: dict[str, Callable[[int, int], int]] = {"files": through_files, "ray": through_ray}


def measure(kind: str, maps: int, buckets: int) -> Cost:
    """Measures one shuffle on a Ray of this process."""
    from cluster.ray_cluster.connection import connect, quiet_ray_data, use_all_cpus

    connect(num_cpus=2)
    quiet_ray_data()
    use_all_cpus()
    KINDS[kind](4, 4)  # imports and worker processes
    before, began, cpu = peak_resident_bytes(), time.monotonic(), time.process_time()
    rows = KINDS[kind](maps, buckets)
    if rows != maps * ROWS_PER_MAP:
        raise SystemExit(f"{rows} rows arrived of {maps * ROWS_PER_MAP}")
    return Cost(
        kind,
        maps,
        buckets,
        time.monotonic() - began,
        time.process_time() - cpu,
        (peak_resident_bytes() - before) / 1e6,
    )


def main() -> None:
    """Measures each kind in a separate process and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--maps", type=int, default=4096)
    parser.add_argument("--buckets", type=int, default=23_550)
    parser.add_argument("--ray-maps", type=int, default=64)
    parser.add_argument("--ray-buckets", type=int, default=512)
    parser.add_argument("--one", choices=sorted(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(measure(options.one, options.maps, options.buckets))))
        return
    print("| shuffle | map tasks | buckets | wall | driver CPU | memory | CPU a pair | memory a pair |")
    print("|---|---|---|---|---|---|---|---|")
    small = (options.ray_maps, options.ray_buckets)
    for kind, (maps, buckets) in [
        ("ray", small),
        ("files", small),
        ("files", (options.maps, options.buckets)),
    ]:
        command = [sys.executable, "-m", "benchmarks.corpus.shuffle_bookkeeping", "--one", kind]
        command += ["--maps", str(maps), "--buckets", str(buckets)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(Cost(**json.loads(done.stdout.splitlines()[-1])).row(), flush=True)


if __name__ == "__main__":
    main()
