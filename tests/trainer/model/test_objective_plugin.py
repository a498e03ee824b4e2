"""An objective that the config names: its loss, its weights, and its part in the run's identity."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import BertmillError, ConfigError
from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.runs import History, phase, train_config
from tests.trainer.segment_objective import SegmentObjective
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.export.load_model import load_model
from trainer.hooks import Hooks
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import STATISTICS, ObjectiveLoss, Targets, objective_error
from trainer.run.loop import Outcome, train
from trainer.startup.setup import preflight

USE = "tests.trainer.segment_objective:SegmentObjective"
ROWS = random_rows(8, VOCAB)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def config(folder: Path, manifest: Path, **objective: Any) -> dict[str, Any]:
    objective = {"use": USE, "settings": {"width": 8}, **objective}
    return train_config(folder, manifest, objective=objective, phases=[phase(32, 16, 128, steps=12)])


def run(settings: dict[str, Any], stop_after: int | None = None) -> Outcome:
    calls = iter(range(100))
    hooks = Hooks(stop_requested=lambda: stop_after is not None and next(calls) >= stop_after - 1)
    return train(TrainConfig.model_validate(settings), single_rank(), hooks)


def totals_of(batches: list[MicroBatch]) -> torch.Tensor:
    masked = sum(len(batch.masked_ids) for batch in batches)
    pairs = sum(len(batch.next_sentence_labels) for batch in batches)
    return torch.tensor(Targets(masked, pairs, *[sum(batch.tokens for batch in batches)] * 2))


@pytest.mark.parametrize("parts", [2, 3])
def test_gradients_of_parts_add_up_to_that_of_the_whole_batch(parts: int) -> None:
    def gradients(batches: list[MicroBatch]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = small_model(hidden_dropout=0.0)
        loss = ObjectiveLoss(model, SegmentObjective(model.config, 8), languages=3, weight=0.5)
        for batch in batches:
            loss(batch, totals_of(batches)).loss.backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    whole = gradients([pack(ROWS)])
    split = gradients([pack(ROWS[part::parts]) for part in range(parts)])
    assert len(whole) == len(split)
    for one, other in zip(whole, split, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_fillers_are_not_targets() -> None:
    torch.manual_seed(0)
    model = small_model(hidden_dropout=0.0).eval()
    loss = ObjectiveLoss(model, SegmentObjective(model.config, 8), languages=3)
    batch = pack(ROWS)
    padded = batch.padded_to(batch.tokens + 40, batch.sequences + 3, len(batch.masked_ids) + 5)
    plain, filled = loss(batch, totals_of([batch])), loss(padded, totals_of([batch]))
    assert torch.allclose(plain.loss, filled.loss, rtol=1e-5)
    columns = [STATISTICS.index("objective_loss"), STATISTICS.index("objective_count")]
    assert torch.allclose(plain.statistics[:, columns], filled.statistics[:, columns], rtol=1e-5)
    assert plain.statistics[:, columns[1]].sum() == batch.tokens


def test_a_run_trains_and_resumes_it_exactly(tmp_path: Path, manifest: Path) -> None:
    whole, parts = config(tmp_path / "whole", manifest), config(tmp_path / "parts", manifest)
    run(parts, stop_after=6)
    states = []
    for settings in (whole, parts):
        checkpoint = latest_verified(run(settings).run_uri)
        assert checkpoint is not None
        states.append(checkpoint.load())
    assert "objective.head.0.weight" in states[0].model
    for name, value in states[0].model.items():
        assert torch.equal(value, states[1].model[name])
    figures = History(tmp_path / "whole" / "runs" / "run").figures()
    assert figures[12]["objective_loss"] < figures[1]["objective_loss"]
    assert set(figures[1]["languages"]) == {
        language for language, values in figures[1]["languages"].items() if "objective_loss" in values
    }
    # Its head is only useful in training.
    assert not any(
        name.startswith("objective") for name in load_model(whole_uri(tmp_path)).model.state_dict()
    )


def whole_uri(folder: Path) -> str:
    return str(folder / "whole" / "runs" / "run")


def test_it_can_train_alone(tmp_path: Path, manifest: Path) -> None:
    run(config(tmp_path, manifest, pretraining_weight=0.0))
    figures = History(tmp_path / "runs" / "run").figures()
    assert figures[12]["mlm_loss"] == pytest.approx(figures[1]["mlm_loss"], abs=0.2)
    assert figures[12]["objective_loss"] < figures[1]["objective_loss"]


def test_a_changed_source_does_not_resume_silently(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(sys.modules[SegmentObjective.__module__].__file__ or "").read_text()
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = config(tmp_path, manifest, use="my_objective:SegmentObjective")
    for text, stop_after in ((source, 4), (f"{source}\n# changed\n", None)):
        (tmp_path / "my_objective.py").write_text(text)
        sys.modules.pop("my_objective", None)
        if stop_after:
            run(settings, stop_after)
            continue
        with pytest.raises(ConfigError, match=r"objective.source_sha256: was \w+, is \w+"):
            run(settings)
        settings["run"]["accept_changes"] = ["objective"]
        assert run(settings).resumed_from == 4
    sys.modules.pop("my_objective", None)


@pytest.mark.parametrize(
    ("objective", "problem"),
    [
        ({"use": "no_such_module:Name"}, r"objective.use: no module named 'no_such_module'"),
        ({"use": "tests.trainer.segment_objective:Missing"}, r"objective.use: .* has no 'Missing'"),
        ({"settings": {}}, r"objective: .*:SegmentObjective does not accept the settings: .*width"),
        (
            {"use": "tests.trainer.segment_objective:not_an_objective", "settings": {}},
            r"objective.use: .*:not_an_objective is not a trainer.model.objectives.Objective",
        ),
    ],
)
def test_a_mistake_is_one_line_before_training(
    tmp_path: Path, manifest: Path, objective: dict[str, Any], problem: str
) -> None:
    settings = TrainConfig.model_validate(config(tmp_path, manifest, **objective))
    with pytest.raises(ConfigError, match=problem) as raised:
        preflight(settings)
    assert "\n" not in str(raised.value)


FAULTS = """
from abc import abstractmethod
from tests.trainer.segment_objective import SegmentObjective

class InitRaises(SegmentObjective):
    def __init__(self, config, width):
        raise KeyError("width")

class Abstract(SegmentObjective):
    @abstractmethod
    def forward(self, model, hidden, batch): ...

class ForwardRaises(SegmentObjective):
    def forward(self, model, hidden, batch):
        return {}["x"]

class CountRaises(SegmentObjective):
    def count_targets(self, batch):
        return batch.nothing

class Scalar(SegmentObjective):
    def forward(self, model, hidden, batch):
        return super().forward(model, hidden, batch).sum()

class Number(SegmentObjective):
    def count_targets(self, batch):
        return 3
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("InitRaises", r"faults:InitRaises: objective: KeyError: 'width' \(.*faults\.py:7\)"),
        ("Abstract", r"objective\.use: faults:Abstract lacks forward"),
        ("ForwardRaises", r"faults:ForwardRaises: objective: KeyError: 'x' \(.*faults\.py:15\)"),
        ("CountRaises", r"faults:CountRaises: objective: AttributeError: .*nothing.* \(.*faults\.py:19\)"),
        ("Scalar", r"faults:Scalar: forward returned the shape \(\); it must return .* shape \(\d+,\)"),
        ("Number", r"faults:Number: count_targets returned the type int; it must return a tensor"),
    ],
)
def test_a_fault_of_an_objective_is_one_line(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faults", raising=False)
    with pytest.raises(BertmillError, match=message) as raised:
        run(config(tmp_path, manifest, use=f"faults:{name}"))
    assert "\n" not in str(raised.value)
    sys.modules.pop("faults", None)


def test_an_error_of_the_device_is_not_the_objectives() -> None:
    """The loop halves micro-batches after it."""
    error = torch.OutOfMemoryError("out of memory")
    assert objective_error(USE, error) is error
