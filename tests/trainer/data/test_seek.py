"""A run resumes at any step without reading earlier rows."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.manifests import read_manifest, write_manifest
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.startup.setup import open_data

WINDOW = 4


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million rows: a thousand links to one shard of 1,000 rows."""
    path = write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(1000,), group_rows=100)
    content = read_manifest(path)
    one = content["sets"][0]
    (shard,) = one["shards"]
    file = path.parent / shard["path"]
    for number in range(1, 1000):
        linked = file.with_name(f"shard-{number:05d}.parquet")
        linked.hardlink_to(file)
        one["shards"].append({**shard, "path": linked.relative_to(path.parent).as_posix()})
    for name in ("rows", "tokens"):
        one[name] *= 1000
    return write_manifest(path, content)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.9])
def test_the_first_batch_reads_one_window_of_row_groups(
    tmp_path: Path, manifest: Path, share: float
) -> None:  # trainer-002
    data = {"manifest": str(manifest), "shuffle_window": WINDOW, "read_ahead": 0}
    config = train_config(tmp_path, manifest, data=data, phases=[phase(32, 100, 4096, epochs=2)])
    with ExitStack() as cleanup:
        opened = open_data(TrainConfig.model_validate(config), single_rank(), cleanup)
        assert opened.plan.total_steps == 20_000
        step = int(share * 10_000)
        batches = opened.reader.read(step)
        assert batches.epoch == int(share)
        assert len(set(batches.row_ids.tolist())) == 100
        (stream,) = opened.streams.values()
        assert stream.rows.groups_read <= WINDOW
