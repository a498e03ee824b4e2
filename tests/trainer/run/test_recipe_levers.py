"""Runs with all settings that change by the step: exact resumes, the same data for any number of ranks."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.errors import ConfigError
from tests.trainer.data.test_batches import rows_of
from tests.trainer.runs import TINY, History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.data.corpus import open_corpus
from trainer.distributed.ranks import Ranks, single_rank
from trainer.export.load_model import load_model
from trainer.hooks import Hooks
from trainer.run.loop import train
from trainer.startup.identity import field_defaults, identity_of
from trainer.startup.setup import open_data


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(120, 110), full=True)


LEVERS: dict[str, Any] = {
    "mask_rule": {"rate": 0.4, "end_rate": 0.1},
    "language_sampling": {"exponent": 1.0, "end_exponent": 0.0, "pool": 2},
    "optimizer": {"kind": "stable_adamw"},
    "schedule": {"shape": "wsd_sqrt", "warmup": 2, "decay": 4},
    "stability": {"z_loss": 1e-4},
    "model": {**TINY, "style": "modern", "local_window": 8, "pair_objective": "nsp", "segments": 2},
}


def config_of(folder: Path, corpus: Path, **changes: Any) -> TrainConfig:
    phases = [
        phase(32, 16, 128, steps=8, length_warmup={"start": 16, "steps": 4, "stairs": 2}, rotary_base=10_000),
        phase(32, 16, 128, steps=4, mask_rule={"rate": 0.2, "unit": "span"}),
    ]
    data = {"manifest": str(corpus), "masking": "dynamic"}
    return TrainConfig.model_validate(
        train_config(folder, corpus, **{"data": data, "phases": phases, **LEVERS, **changes})
    )


def steps_of(config: TrainConfig, world: int) -> list[dict[int, Any]]:
    """For each step the rows of the global batch, by row id."""
    found: list[dict[int, Any]] = []
    with ExitStack() as cleanup:
        ranks = [Ranks(rank, world, single_rank().device, None) for rank in range(world)]
        opened = [open_data(config, one, cleanup) for one in ranks]
        for step in range(opened[0].plan.total_steps):
            found.append({})
            for one in opened:
                for batch in one.reader.read(step).micro_batches:
                    batch.check(200, 32)
                    found[-1].update(rows_of(batch))
    return found


def test_data_do_not_depend_on_ranks_and_follow_the_step(tmp_path: Path, corpus: Path) -> None:
    config = config_of(tmp_path, corpus)
    steps = steps_of(config, 1)
    assert steps == steps_of(config, 3)
    assert [len(rows) for rows in steps] == [16] * 12
    longest = [max(len(row[0]) for row in rows.values()) for rows in steps]
    assert longest == [16, 16, 24, 24, *[32] * 8]
    rates = [np.mean([len(row[3]) / len(row[0]) for row in rows.values()]) for rows in steps]
    assert rates == pytest.approx([0.4 - 0.3 * step / 11 for step in range(8)] + [0.2] * 4, abs=0.04)
    # Pairs stay pairs: both labels, and a second segment in every row.
    assert all({row[4] for row in rows.values()} == {0, 1} for rows in steps)
    assert all(any(row[1]) for rows in steps for row in rows.values())


def test_few_mask_rates_make_few_fixed_shapes(tmp_path: Path, corpus: Path) -> None:
    data = {"manifest": str(corpus), "masking": "dynamic", "fixed_shapes": True}
    config = config_of(tmp_path, corpus, data=data, phases=[phase(32, 16, 128, steps=12)])
    shapes: list[set[int]] = []
    with ExitStack() as cleanup:
        opened = open_data(config, single_rank(), cleanup)
        for step in range(12):
            shapes.append({len(batch.masked_ids) for batch in opened.reader.read(step).micro_batches})
    assert all(len(of_step) == 1 for of_step in shapes)
    # 0.4, 0.35, ... 0.1.
    assert len(set.union(*shapes)) == 7


def test_all_languages_are_equally_frequent_at_exponent_0(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", shard_rows=(300,))
    sampling = {"exponent": 0.0, "pool": 4}
    config = config_of(tmp_path, path, language_sampling=sampling, phases=[phase(32, 24, 128, steps=2)])
    for rows in steps_of(config, 1):
        assert np.bincount([row[5] for row in rows.values()]).tolist() == [8, 8, 8]


def test_a_run_with_all_levers_resumes_exactly_and_exports_its_rope_base(
    tmp_path: Path, corpus: Path
) -> None:
    train(config_of(tmp_path / "whole", corpus), single_rank())
    asked = iter(range(100))
    stopped = config_of(tmp_path / "parts", corpus)
    train(stopped, single_rank(), Hooks(stop_requested=lambda: next(asked) >= 5))
    assert load_model(stopped.run.uri).model.config.rotary_base == 10_000
    train(stopped, single_rank())
    whole, parts = (History(tmp_path / name / "runs" / "run") for name in ("whole", "parts"))
    assert len(parts.events("started")) == 2
    assert whole.losses() == parts.losses()
    assert load_model(stopped.run.uri).model.config.rotary_base == 160_000


def test_a_resume_refuses_another_recipe(tmp_path: Path, corpus: Path) -> None:
    config = config_of(tmp_path, corpus)
    train(config, single_rank())
    changed = config_of(tmp_path, corpus, mask_rule={"rate": 0.3})
    with pytest.raises(ConfigError, match=r"mask_rule\.rate: was 0\.4, is 0\.3"):
        train(changed, single_rank())
    identity = identity_of(config, open_corpus(str(corpus)).digest, {})
    assert {"mask_rule.end_rate", "language_sampling.pool", "phases.0.length_warmup.start"} <= set(identity)
    assert field_defaults(config)["phases.0.mask_rule"] is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": {"manifest": "m"}}, "mask_rule: masks of the shards are fixed"),
        ({"model": TINY}, "phases.0.rotary_base: model.positions is learned, not rotary"),
        (
            {"phases": [phase(32, 16, 128, steps=1, length_warmup={"start": 64, "steps": 2})]},
            "length_warmup.start is larger than max_seq_length",
        ),
        ({"language_sampling": {"exponent": 0.3, "pool": 1}}, "greater than or equal to 2"),
    ],
)
def test_levers_that_do_not_fit_are_refused(tmp_path: Path, changes: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config_of(tmp_path, tmp_path / "m", **changes)


def test_shares_that_exceed_1_with_those_of_the_corpus_are_refused(tmp_path: Path, corpus: Path) -> None:
    config = config_of(
        tmp_path, corpus, mask_rule={"random_share": 0.4}, phases=[phase(32, 16, 128, steps=1)]
    )
    with ExitStack() as cleanup, pytest.raises(ConfigError, match="add up to more than 1"):
        open_data(config, single_rank(), cleanup)
