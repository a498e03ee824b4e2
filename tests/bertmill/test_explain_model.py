"""``bertmill explain model``: logits of models from elsewhere, for comparison."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bertmill.cli import main
from tests.trainer.export.hub_models import FAMILIES, VOCAB, outputs, random_ids, random_model, save


def explain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str, *records: dict[str, Any]
) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    capsys.readouterr()
    assert main(["explain", "model", folder]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = random_model(family)
    ids = random_ids(9)
    record = {"id": "a", "input_ids": ids[0].tolist()}
    (answer,) = explain(monkeypatch, capsys, save(theirs, tmp_path), record)
    expected = outputs(theirs, ids, torch.zeros_like(ids))
    assert answer["id"] == "a"
    assert answer["mlm_argmax"] == expected["mlm"].argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(answer["mlm_logits"]), expected["mlm"][:, :8], rtol=0, atol=1e-5)
    assert ("nsp_logits" in answer) == ("pair" in expected)
    if "pair" in expected:
        torch.testing.assert_close(torch.tensor(answer["nsp_logits"]), expected["pair"], rtol=0, atol=1e-5)


def test_segments_count_and_wrong_records_are_answered_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(random_model("bert"), tmp_path)
    ids = random_ids(6)[0].tolist()
    one, two, *wrong = explain(
        monkeypatch,
        capsys,
        folder,
        {"id": 1, "input_ids": ids},
        {"id": 2, "input_ids": ids, "segment_ids": [0, 0, 0, 1, 1, 1]},
        {"id": 3, "input_ids": [*ids, VOCAB]},
        {"id": 4, "input_ids": ids, "segment_ids": [0]},
        {"id": 5, "input_ids": []},
        {"id": 6},
    )
    assert one["mlm_logits"] != two["mlm_logits"]
    assert [answer["error"].partition(":")[0] for answer in wrong[:3]] == [
        "input_ids", "segment_ids", "input_ids",
    ]  # fmt: skip
    assert "field 'input_ids' is missing" in wrong[3]["error"]


def test_an_encoder_without_a_head_shows_hidden_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = random_model("electra", "ElectraForPreTraining")
    ids = random_ids(5)
    (answer,) = explain(monkeypatch, capsys, save(theirs, tmp_path), {"id": 1, "input_ids": ids[0].tolist()})
    assert set(answer) == {"id", "hidden"}
    expected = outputs(theirs.electra, ids, torch.zeros_like(ids))["hidden"][:, :8]
    torch.testing.assert_close(torch.tensor(answer["hidden"]), expected, rtol=0, atol=1e-5)


def test_padding_of_roberta_and_a_missing_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(random_model("roberta"), tmp_path / "m")
    (answer,) = explain(monkeypatch, capsys, folder, {"id": 1, "input_ids": [2, 7, 1]})
    assert answer["error"] == "input_ids: contains 1, the padding token; leave padding out"
    assert main(["explain", "model"]) == 2
    assert main(["explain", "model", str(tmp_path / "none")]) == 2
