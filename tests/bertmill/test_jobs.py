"""The jobs as calls from Python."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import bertmill
from pipeline.config import BuildConfig
from schemas.errors import ConfigError
from tests.support.ray_cluster import ROOT, RayCluster
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("api")
    return train_config(folder, write_corpus(folder / "corpus"), phases=[phase(32, 16, 512, steps=2)])


def test_a_run_from_a_mapping_and_its_model(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    outcome = bertmill.pretrain(config, launcher="local")
    assert (outcome.status, outcome.step) == ("finished", 2)
    assert "step 2/2" in capsys.readouterr().out
    assert (torch.get_num_threads(), signal.getsignal(signal.SIGTERM)) == (threads, handler)
    saved = bertmill.load_model(outcome.run_uri)
    assert saved.step == 2
    # A finished run has nothing left to do. A typed config and another thread also work.
    again: list[bertmill.Outcome] = []
    typed = TrainConfig.model_validate(config)
    thread = threading.Thread(target=lambda: again.append(bertmill.pretrain(typed, launcher="local")))
    thread.start()
    thread.join()
    assert again[0].resumed_from == again[0].step == 2


@pytest.mark.parametrize(
    ("call", "value", "message"),
    [
        (bertmill.pretrain, {"phases": []}, "config: run: Field required"),
        (bertmill.build, {"output": "x", "sauces": []}, "config: sources: Field required (and 1 more)"),
        (bertmill.build, "no/such.yaml", "no/such.yaml: no such config file"),
        (bertmill.build, Path("no/such.yaml"), "no/such.yaml: no such config file"),
    ],
)
def test_a_wrong_config_is_one_line(call: Any, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call(value)
    assert str(refused.value).startswith(message)


def test_the_config_of_the_other_job_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a BuildConfig, got a TrainConfig"):
        bertmill.build(TrainConfig.model_validate(config))  # type: ignore[arg-type]


@pytest.mark.ray
@pytest.mark.slow
def test_a_corpus_from_a_typed_config(tmp_path: Path, ray_session: RayCluster) -> None:
    texts = str(ROOT / "sample" / "books" / "pt" / "*.txt.gz")
    built = bertmill.build(
        BuildConfig.model_validate({
            "output": str(tmp_path / "corpus"),
            "sources": [{"name": "b", "kind": "bookcorpus", "lang": "pt", "paths": [texts]}],
            "vocabulary": {"size": 1000},
            "instances": {"bucket_bytes": 1 << 20},
        })
    )  # fmt: skip
    assert built.manifest == f"{tmp_path}/corpus/manifest.json"
    assert "pt" in built.summary
    dataset = bertmill.load_corpus(built.output, batch_size=4, max_seq_length=128, epochs=1)
    assert len(list(dataset)) == len(dataset) > 0


def test_an_unknown_launcher_is_refused() -> None:
    launcher: Any = "loca"
    with pytest.raises(ConfigError, match="launcher: 'loca' must be 'ray' or 'local'"):
        bertmill.pretrain("configs/demo-train.yaml", launcher=launcher)
