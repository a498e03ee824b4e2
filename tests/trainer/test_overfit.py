"""64 rows are learnt by heart, by every style with each optimizer."""

import math
from contextlib import ExitStack

import pytest

from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.hooks import Hooks
from trainer.loop import Trainer
from trainer.ranks import alone

MODEL = {
    "size": "custom",
    "layers": 2,
    "hidden_size": 64,
    "heads": 2,
    "max_positions": 64,
    "hidden_dropout": 0.0,
}
# A step of Muon is 0.2 of its rate at most, AdamW's first ones are nearly the whole rate.
RATES = {"adamw": 3e-3, "lamb": 2e-2, "muon": 1e-2}
# One set of weights for all layers and narrow embeddings: they want more.
ALBERT_RATES = {"adamw": 1e-2, "lamb": 4e-2, "muon": 1e-2}


def overfit(folder, style, kind):
    """The history of 200 steps over the same 64 rows."""
    pairs = "none" if style in ("roberta", "modern") else "nsp"
    albert = style == "albert"
    rate = (ALBERT_RATES if albert else RATES)[kind]
    manifest = write_corpus(
        folder / "corpus", shard_rows=(64,), group_rows=64, objective=pairs, vocab_size=100
    )
    config = train_config(
        folder,
        manifest,
        model={**MODEL, "style": style, "pair_objective": pairs, "embedding_size": 32 if albert else 64},
        phases=[phase(32, 64, 4096, steps=200, learning_rate=rate)],
        optimizer={"kind": kind, "weight_decay": 0.0},
        checkpoints={"every_steps": None, "every_seconds": None},
        logging={"every_steps": 1, "tensorboard": False},
        schedule={"warmup": 10},
    )
    with ExitStack() as cleanup:
        outcome = Trainer(TrainConfig.model_validate(config), alone(), Hooks(), cleanup).run()
    assert outcome.skipped_steps < 5
    return History(folder / "runs" / "run").losses(), pairs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "lamb", "muon"])
@pytest.mark.parametrize("style", ["bert", "albert", "roberta", "modern"])
def test_sixty_four_rows_are_learnt(tmp_path, style, kind):  # trainer-025, trainer-026
    losses, pairs = overfit(tmp_path, style, kind)
    guess = math.log(100) + (math.log(2) if pairs == "nsp" else 0.0)
    assert abs(losses[1] - guess) < 0.5
    assert losses[200] < 0.5
