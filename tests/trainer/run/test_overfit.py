"""Every style memorizes 64 rows with AdamW and LAMB, and two styles with Muon.

Every step has the same 64 rows and no dropout. Any rate that learns them in 160 steps takes AdamW over its
threshold of stability once the model becomes confident: the largest eigenvalue of the preconditioned Hessian
is up to 7 times 38 / lr (Cohen et al. 2022, "Adaptive gradient methods at the edge of stability"). Norms of 2
to 40 then follow norms of 1 to 3 in bursts that end by themselves, at steps that depend on rounding. The loss
must therefore be far below its bound for all seeds, and a burst may cost a few skipped steps.
"""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import Trainer

LENGTH, STEPS = 16, 160
MODEL = {
    "size": "custom",
    "layers": 2,
    "hidden_size": 64,
    "heads": 2,
    "intermediate_size": 128,
    "max_positions": LENGTH,
    "hidden_dropout": 0.0,
}
# A step of Muon is at most 0.2 of its rate, and AdamW's first steps are nearly the whole rate.
# LAMB at 2e-2 learns the rows of "modern" only with some seeds.
RATES = {"adamw": 3e-3, "lamb": 4e-2, "muon": 1e-2}
# One set of weights for all layers and narrow embeddings need a higher rate.
STYLE_RATES = {"albert": {"adamw": 1e-2}}


def overfit(folder: Path, style: str, kind: Any) -> Any:
    """The history of STEPS steps over the same 64 rows."""
    pairs = "none" if style in ("roberta", "modern") else "nsp"
    albert = style == "albert"
    rate = {**RATES, **STYLE_RATES.get(style, {})}[kind]
    manifest = write_corpus(
        folder / "corpus", lengths=(LENGTH,), shard_rows=(64,), group_rows=64, objective=pairs, vocab_size=100
    )
    config = train_config(
        folder,
        manifest,
        model={**MODEL, "style": style, "pair_objective": pairs, "embedding_size": 32 if albert else 64},
        phases=[phase(LENGTH, 64, 4096, steps=STEPS, learning_rate=rate)],
        optimizer={"kind": kind, "weight_decay": 0.0},
        checkpoints={"every_steps": None, "every_seconds": None},
        logging={"every_steps": 1, "trackers": []},
        schedule={"warmup": 10},
    )
    with ExitStack() as cleanup:
        outcome = Trainer(TrainConfig.model_validate(config), single_rank(), Hooks(), cleanup).run()
    assert outcome.skipped_steps < 5
    return History(folder / "runs" / "run").losses(), pairs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "kind"),
    [
        *((style, kind) for style in ("bert", "albert", "roberta", "modern") for kind in ("adamw", "lamb")),
        *((style, "muon") for style in ("albert", "modern")),
    ],
)
def test_sixty_four_rows_are_learnt(
    tmp_path: Path, style: str, kind: Any
) -> None:  # trainer-025, trainer-026
    losses, pairs = overfit(tmp_path, style, kind)
    guess = math.log(100) + (math.log(2) if pairs == "nsp" else 0.0)
    assert abs(losses[1] - guess) < 0.5
    assert losses[STEPS] < 0.5
