"""No secret of the storage gets into anything that a training on it writes, prints or exports."""

import logging
import pickle
from pathlib import Path

import pytest

from cluster import storage
from tests.support.s3_server import SECRET_KEY
from tests.trainer.runs import train_config
from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.launcher.ray_storage import filesystem_of
from trainer.run.console import ConsoleLog
from trainer.run.export_run import export_run
from trainer.run.loop import train

pytestmark = pytest.mark.s3

VOCAB = 120


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_corpus_with_tokenizer(tmp_path, VOCAB)


def test_a_training_on_s3_keeps_its_secrets(
    tmp_path: Path, manifest: Path, s3_folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("trainer", "cluster", "bertmill", "botocore", "boto3"):
        # botocore does not log the secret of any request, even at its most verbose level.
        caplog.set_level(logging.DEBUG, logger=name)
    said: list[str] = []
    run = {"name": "run", "storage": s3_folder}
    config = train_config(tmp_path, manifest, run=run, logging={"every_steps": 1})
    train(TrainConfig.model_validate(config), single_rank(), Hooks(on_record=ConsoleLog(said.append)))
    export_run(f"{s3_folder}/run", f"{s3_folder}/exported")
    written = {info.uri: storage.read_bytes(info.uri) for info in storage.list_files(s3_folder)}
    kinds = {uri.rpartition("/")[2] for uri in written}
    assert {"MANIFEST.json", "optimizer.pt", "rank-00000.jsonl", "README.md", "config.json"} <= kinds
    assert [uri for uri, data in written.items() if SECRET_KEY.encode() in data] == []
    assert SECRET_KEY not in "".join(said)
    assert SECRET_KEY not in caplog.text
    # Ray passes the arguments for the storage from process to process, and writes them to its records.
    assert SECRET_KEY.encode() not in pickle.dumps(filesystem_of(s3_folder))
