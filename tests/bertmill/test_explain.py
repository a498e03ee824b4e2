"""``bertmill explain``: the case files of each area as a user runs them, and wrong input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertmill.explain import dump, instances, tokens
from schemas.errors import CorpusError, InputError
from tests.cases.checker.areas import evaluate
from tests.cases.checker.running import load_vocab
from tests.pipeline.sources.dumps import CASES, SAMPLE

RUNNER = Path(__file__).parents[1] / "cases" / "run_cases.py"
TEXT_CASES = RUNNER.parent


def test_every_case_of_area_dump_passes() -> None:
    command = [sys.executable, "run_cases.py", "dumps", "--command", f"{sys.executable} -m bertmill explain"]
    done = subprocess.run(
        [*command, "--time-factor", "3"], cwd=CASES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_a_missing_dump_is_one_line_and_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bertmill", "explain", "dump", str(tmp_path / "no.xml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith(f"{tmp_path / 'no.xml'}: no such file")
    assert len(done.stderr.strip().splitlines()) == 1


def test_real_dumps_balance() -> None:
    for path in sorted((SAMPLE / "dumps").glob("*.xml.bz2")):
        answer = json.loads(json.dumps(dump([str(path)])))
        assert answer["pages_seen"] == len(answer["kept"]) + sum(answer["skipped"].values()) > 0
    with pytest.raises(InputError, match="error-page"):
        dump([str(CASES / "error-page.xml.bz2")])


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
        instances(record)


def test_documents_without_a_token_give_no_instance() -> None:
    assert instances({"documents": [[], [[]]]}) == {"output": {"instances": [], "tokens_dropped": 0}}


def test_languages_are_not_mixed_in_a_pair() -> None:
    documents = [[[f"{d}.{s}.{t}" for t in range(5)] for s in range(6)] for d in range(20)]
    langs = ["de", "fr"] * 10
    record = {"documents": documents, "langs": langs, "max_seq_length": 24, "seed": 3, "masking": "token"}
    rows = instances(json.loads(json.dumps(record)))["output"]["instances"]
    random_pairs = 0
    for instance in rows:
        whole = list(instance["tokens"])
        for position, label in zip(instance["masked_positions"], instance["masked_labels"], strict=True):
            whole[position] = label
        found = {int(token.split(".")[0]) for token in whole if "." in token}
        assert len({langs[number] for number in found}) == 1
        random_pairs += len(found) == 2
    assert random_pairs > 5


def test_every_case_of_area_tokens_passes() -> None:
    explain = tokens(str(TEXT_CASES / "vocab.txt"))
    vocabulary = load_vocab(TEXT_CASES / "vocab.txt")
    failures = {}
    for line in (TEXT_CASES / "tokens.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        faults = evaluate("tokens", case, explain(case["input"]), vocabulary)
        if faults:
            failures[case["id"]] = faults
    assert failures == {}


def test_a_bad_vocabulary_is_refused_before_any_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(CorpusError, match=r"vocab.txt: has no \[CLS\]"):
        tokens(str(tmp_path / "vocab.txt"))
