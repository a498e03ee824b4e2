"""The objective of the examples in a real run, on rows that do not reveal their language."""

import math
from pathlib import Path

import pytest

import bertmill
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import LANGUAGES, write_corpus
from trainer.monitoring.history import read_history

USE = "examples.language_objective:LanguageObjective"


def test_a_run_with_the_objective(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus")
    section = {"use": USE, "weight": 1.0, "settings": {"languages": len(LANGUAGES)}}
    config = train_config(tmp_path, manifest, objective=section, phases=[phase(32, 100, 4096, steps=30)])
    outcome = bertmill.pretrain(config, launcher="local")
    assert outcome.status == "finished"
    losses = [record.objective_loss for record in read_history(outcome.run_uri).steps]
    assert len(losses) == 30
    # The languages of the invented rows are drawn evenly: the best guess has this loss for each row.
    assert losses[-1] == pytest.approx(math.log(len(LANGUAGES)), abs=0.05)
