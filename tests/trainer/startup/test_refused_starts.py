"""Configs, corpora and checkpoints that a run refuses, and changes that it accepts."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import CheckpointError, ConfigError, CorpusError
from tests.trainer.runs import History, train_config
from tests.trainer.single_process import equal, run, weights
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.run.loop import train


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32, 64), passes=2)


def test_fused_kernels_that_cannot_be_had_are_refused(tmp_path: Path, manifest: Path) -> None:
    with pytest.raises(
        ConfigError, match="kernels: fused layers are not possible: the variable-length kernel"
    ):
        run(train_config(tmp_path, manifest, kernels="fused"))


def test_a_changed_config_is_refused_unless_it_is_accepted(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-008
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    longer = {**config, "phases": [{**config["phases"][0], "steps": 24}]}
    with pytest.raises(ConfigError, match=r"phases.0.steps: was 12, is 24.*accept_changes='\[phases\]'"):
        run(longer)
    with pytest.raises(ConfigError, match=r"seed: was 12345, is 7\)\. Choose another name"):
        run({**config, "seed": 7})
    outcome = run({**longer, "run": {**config["run"], "accept_changes": ["phases"]}})
    assert (outcome.resumed_from, outcome.step) == (4, 24)
    (first, second) = History(tmp_path / "runs" / "run").events("started")
    assert first["changes"] == []
    assert second["changes"] == ["phases.0.steps: was 12, is 24"]


@pytest.mark.parametrize("change", [{"weight_decay": 0.5}, {"betas": [0.5, 0.6]}, {"eps": 0.01}])
def test_an_accepted_change_of_the_optimizer_takes_place(tmp_path: Path, manifest: Path, change: Any) -> None:
    """torch would take these from the saved state, which has the old values."""
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    shutil.copytree(tmp_path / "runs", tmp_path / "before")
    unchanged = weights(run(config))
    shutil.rmtree(tmp_path / "runs")
    shutil.copytree(tmp_path / "before", tmp_path / "runs")
    accepted = {**config["run"], "accept_changes": ["optimizer"]}
    changed = weights(run({**config, "run": accepted, "optimizer": change}))
    assert not equal(changed, unchanged)


def test_moments_of_another_optimizer_are_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    config["run"] = {**config["run"], "accept_changes": ["optimizer"]}
    with pytest.raises(CheckpointError, match=r"does not fit the model: .* state has \['exp_avg'"):
        run({**config, "optimizer": {"kind": "muon"}})
    # LAMB has the same moments as AdamW.
    assert run({**config, "optimizer": {"kind": "lamb"}}).step == 12


def test_how_a_run_is_carried_out_may_change_freely(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    config["phases"] = [{**config["phases"][0], "micro_batch_tokens": 64}]
    config["data"] = {**config["data"], "read_ahead": 7, "cache_bytes": 1 << 20}
    config["checkpoints"] = {"every_steps": 3}
    config["workers"] = {"num_workers": 2}
    assert run(config).resumed_from == 4


def test_another_corpus_is_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    other = write_corpus(tmp_path / "other", lengths=(32, 64), passes=2, seed=2)
    with pytest.raises(ConfigError, match=r"data.corpus: was \w+, is \w+"):
        run({**config, "data": {"manifest": str(other)}})


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config)
    config["run"] = {**config["run"], "accept_changes": ["phases"]}
    config["phases"] = [{**config["phases"][0], "steps": 6}]
    with pytest.raises(ConfigError, match="has done 12 steps, but the config plans only 6"):
        run(config)


@pytest.mark.parametrize("spelling", ["fp16", "float16", "half"])
def test_half_precision_is_refused_with_the_reason(
    tmp_path: Path, manifest: Path, spelling: str
) -> None:  # trainer-023
    with pytest.raises(
        ValueError, match=r"precision\n.*fp16 is not supported: .*bf16, which has the range of fp32"
    ):
        TrainConfig.model_validate(train_config(tmp_path, manifest, precision=spelling))


def test_damaged_data_ends_the_run_with_its_name(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", shard_rows=(64, 64))
    shard = tmp_path / "corpus" / "train-32-0" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CorpusError, match=r"shard-00001.parquet: \d+ bytes, but the manifest says"):
        train(TrainConfig.model_validate(train_config(tmp_path, manifest)), single_rank())
    config = train_config(tmp_path / "late", manifest)
    config["data"]["check_shards"] = False
    with pytest.raises(CorpusError, match=r"shard-00001.parquet"):
        run(config)


def test_damaged_checkpoints_are_not_started_over_silently(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-038
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    (weights,) = (tmp_path / "runs" / "run" / "checkpoints").glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"--run.restart=true restarts at step 0"):
        run(config)
    outcome = run({**config, "run": {**config["run"], "restart": True}})
    assert (outcome.resumed_from, outcome.step) == (0, 12)


def test_objective_and_positions_have_to_fit(tmp_path: Path, manifest: Path) -> None:  # trainer-033
    config = train_config(tmp_path, manifest)
    with pytest.raises(ConfigError, match=r"model.pair_objective: sop, but .* was built for nsp"):
        run({**config, "model": {**config["model"], "pair_objective": "sop"}})
    with pytest.raises(ConfigError, match=r"its vocabulary has 300 entries, that of .* has 200"):
        run({**config, "model": {**config["model"], "vocab_size": 300}})
    with pytest.raises(ConfigError, match=r"data.vocabulary_sha256: 0{64}, but the vocabulary of"):
        run({**config, "data": {**config["data"], "vocabulary_sha256": "0" * 64}})
    with pytest.raises(ConfigError, match="max_positions 16 is too small for max_seq_length 32"):
        run({**config, "model": {**config["model"], "max_positions": 16}})
    with pytest.raises(ConfigError, match=r"phases.0.max_seq_length: .* no sequences of length 48"):
        run({**config, "phases": [{**config["phases"][0], "max_seq_length": 48}]})
