"""``bertmill explain tokens``: the case files, and a vocabulary that is refused."""

import json

import pytest

from bertmill.explain_tokens import with_vocabulary
from schemas.errors import CorpusError
from tests.cases import run_cases
from tests.pipeline.bert_reference import ROOT

CASES = ROOT / "tests" / "cases"


def test_all_cases_of_the_area_pass():
    explain = with_vocabulary(str(CASES / "vocab.txt"))
    vocabulary = run_cases.load_vocab(CASES / "vocab.txt")
    failures = {}
    for line in (CASES / "tokens.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        faults = run_cases.evaluate("tokens", case, explain(case["input"]), vocabulary)
        if faults:
            failures[case["id"]] = faults
    assert failures == {}


def test_a_bad_vocabulary_is_refused_before_any_line(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(CorpusError, match=r"vocab.txt: no \[CLS\] in it"):
        with_vocabulary(str(tmp_path / "vocab.txt"))
