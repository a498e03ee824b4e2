"""A run resumes at any step without reading earlier rows."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.manifests import sealed
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.startup.setup import open_data

WINDOW = 4


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million rows: a shard of 1,000 rows, named a thousand times."""
    path = write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(1000,), group_rows=100)
    content = json.loads(path.read_bytes())
    one = content["sets"][0]
    one["shards"] = one["shards"] * 1000
    one["rows"] = 1_000_000
    path.write_bytes(sealed(content))
    return path


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
