"""Tests that ``{{#expr:}}`` computes like MediaWiki and accepts nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.wikitext.templates.expressions import evaluate, show


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2 + 3*4", 14), ("(2+3)*4", 20), ("2^3^2", 64), ("7 mod 3", 1),
     ("3.14159 round 2", 3.14), ("not 0 and 1", 1),
     ("1 <> 2", 1), ("abs -5 + 1", 6), ("-2 + 5", 3), ("6 div 4", 1.5), ("1 or 0 and 0", 1)],
)  # fmt: skip
def test_arithmetic(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression", ["", "1/0", "''.join(1)", "__import__", "2 +", "(1", "1)", "9^999", "x", "1 1"]
)
def test_anything_else_has_no_value(expression: str) -> None:
    assert evaluate(expression) is None


def test_whole_numbers_show_no_point() -> None:
    assert (show(6.0), show(2.5), show(-0.0)) == ("6", "2.5", "0")


@given(st.text("0123456789.+-*/^()<>=! notandrmdivfloceil", max_size=250))
def test_never_raises(expression: str) -> None:
    value = evaluate(expression)
    assert value is None or show(value)
