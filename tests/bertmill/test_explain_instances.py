"""The case files of area instances, through the console command as a user would run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertmill.explain_instances import explain
from schemas.errors import InputError

RUNNER = Path(__file__).parents[1] / "cases" / "run_cases.py"


def test_every_case_of_area_instances_passes() -> None:
    command = f"{sys.executable} -m bertmill explain"
    done = subprocess.run(
        [sys.executable, str(RUNNER), "instances", "--command", command, "--time-factor", "10"],
        capture_output=True,
        text=True,
        check=False,
        cwd=RUNNER.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(" 0 failed")


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({}, "documents"),
        ({"documents": [["word"]]}, "documents"),
        ({"documents": [[["a"]]], "objective": "mlm"}, "objective"),
        ({"documents": [[["a"]]], "masking": "words"}, "masking"),
        ({"documents": [[["a"]]], "seed": "x"}, "seed"),
    ],
)
def test_a_wrong_field_is_named(record: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        explain(record)


def test_documents_without_a_token_give_no_instance() -> None:
    assert explain({"documents": [[], [[]]]}) == {"output": {"instances": [], "tokens_dropped": 0}}


def test_languages_are_not_mixed_in_a_pair() -> None:
    documents = [[[f"{d}.{s}.{t}" for t in range(5)] for s in range(6)] for d in range(20)]
    langs = ["de", "fr"] * 10
    record = {"documents": documents, "langs": langs, "max_seq_length": 24, "seed": 3, "masking": "token"}
    instances = explain(json.loads(json.dumps(record)))["output"]["instances"]
    random_pairs = 0
    for instance in instances:
        whole = list(instance["tokens"])
        for position, label in zip(instance["masked_positions"], instance["masked_labels"], strict=True):
            whole[position] = label
        found = {int(token.split(".")[0]) for token in whole if "." in token}
        assert len({langs[number] for number in found}) == 1
        random_pairs += len(found) == 2
    assert random_pairs > 5
