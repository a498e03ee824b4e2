"""Tests that SVG charts draw every value in proportion and nothing outside the chart."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.report.axis import short
from pipeline.report.charts import MOST_BARS, Bar, bars, histogram

_ATTRIBUTE = re.compile(r"([\w-]+)=([^'\"\s>]+)(?=[\s>])")


def parsed(svg: str) -> ElementTree.Element:
    """The first SVG of ``svg``, with its attributes in quotes, as XML requires."""
    found = re.search(r"<svg.*?</svg>", svg)
    assert found is not None
    quoted = re.sub(r"<[^>]+>", lambda tag: _ATTRIBUTE.sub(r"\1='\2'", tag[0]), found[0])
    return ElementTree.fromstring(quoted)


def rectangles(svg: str) -> list[dict[str, float]]:
    return [
        {name: float(rect.get(name, "0")) for name in ("x", "y", "width", "height")}
        for rect in parsed(svg).iter("rect")
        if rect.find("title") is not None
    ]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=MOST_BARS))
def test_bars_are_as_long_as_their_values_and_lie_inside(values: list[int]) -> None:
    svg = bars([Bar(f"language {number}", (value,)) for number, value in enumerate(values)], "pages")
    drawn = rectangles(svg)
    positive = [value for value in values if value]
    assert len(drawn) == len(positive)
    root = parsed(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for box, value in zip(drawn, positive, strict=True):
        assert box["x"] + box["width"] < width
        assert box["y"] + box["height"] < height
        largest = max(other["width"] for other in drawn)
        assert box["width"] == pytest.approx(largest * value / max(positive), abs=0.6)
        assert f"{value:,}" in svg


def test_parts_lie_end_to_end_with_a_legend() -> None:
    svg = bars([Bar("de", (30, 10, 0)), Bar("fr", (5, 5, 10))], "pages", ("kept", "twice", "skipped"))
    boxes = rectangles(svg)
    assert len(boxes) == 5
    assert boxes[1]["x"] == pytest.approx(boxes[0]["x"] + boxes[0]["width"], abs=0.2)
    assert all(f">{name}<" in svg for name in ("kept", "twice", "skipped", "de", "fr"))
    assert "de: kept: 30" in svg


def test_a_long_tail_is_summed_up_or_left_to_the_table() -> None:
    rows = [Bar(f"l{number}", (1.0, 2.0)) for number in range(MOST_BARS + 7)]
    svg = bars(rows, "pages", ("a", "b"))
    assert ">7 more<" in svg
    assert ">21<" in svg
    shares = bars(rows, "share", ("a", "b"), shares=True, stacked=False)
    assert "7 more are in the table" in shares
    assert len(rectangles(shares)) == 2 * MOST_BARS


def test_names_are_escaped_and_cut_with_the_whole_name_as_tooltip() -> None:
    name = "<script>" + "x" * 80
    svg = bars([Bar(name, (1,))], "a < b")
    assert "<script>" not in svg
    assert "…" in svg
    assert "x" * 80 in svg
    assert bars([], "pages") == "<p>None.</p>"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_columns_are_as_high_as_their_counts(counts: list[int]) -> None:
    svg = histogram(counts, [str(number) for number in range(len(counts))], "tokens, up to", "rows")
    drawn = rectangles(svg)
    positive = [count for count in counts if count]
    assert len(drawn) == len(positive)
    for box, count in zip(drawn, positive, strict=True):
        tallest = max(other["height"] for other in drawn)
        assert box["height"] == pytest.approx(tallest * count / max(positive), abs=0.8)
    assert ">tokens, up to<" in svg
    assert ">rows<" in svg


def test_short_numbers() -> None:
    assert [short(v) for v in (0, 7, 1500, 2_500_000, 3e9, 0.25)] == ["0", "7", "1.5k", "2.5M", "3G", "0.25"]
