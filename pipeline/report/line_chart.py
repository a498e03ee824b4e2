"""Draws line charts as SVG text for pages without external assets."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipeline.report.axis import short, ticks

_WIDTH, _HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 12, 34
_MOST_POINTS = 600
_COLORS = (
    "#4878a8", "#d1605e", "#5a9e6f", "#e49444", "#8a6bb1",
    "#7d7d7d", "#c0a33a", "#4aa5a5", "#b5648f", "#84623f",
)  # fmt: skip

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named line. Its points are sorted by x."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Mark:
    """A vertical line at ``x`` with a tooltip."""

    x: float
    text: str
    color: str = "#bbb"


def line_chart(
    lines: Sequence[Line],
    unit: str,
    marks: Sequence[Mark] = (),
    *,
    span: tuple[float, float] | None = None,
    breaks: Sequence[float] = (),
) -> str:
    """An SVG of ``lines`` over a common axis named ``unit``, without values that are not finite.

    The axis covers ``span``, by default from the first point to the last. No line crosses one of the
    ``breaks``.
    """
    kept = [(line.name, _pieces(line.points, breaks)) for line in lines]
    points = [point for _, pieces in kept for piece in pieces for point in piece]
    if not points:
        return "<p>Nothing was measured.</p>"
    xs, ys = zip(*points, strict=True)
    low, high = span or (min(xs), max(xs))
    across = _Axis(low, high, _LEFT, _WIDTH - _RIGHT)
    up = _Axis(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(across, up, unit)]
    for mark in marks:
        if across.low <= mark.x <= across.high:
            x = f"{across.place(mark.x):.1f}"
            parts.append(
                f"<line x1={x} x2={x} y1={_TOP} y2={_HEIGHT - _BOTTOM} stroke={mark.color!r}>"
                f"<title>{escape(mark.text)}</title></line>"
            )
    for number, (name, pieces) in enumerate(kept):
        color = _COLORS[number % len(_COLORS)]
        parts += [_drawn(piece, across, up, color) for piece in pieces]
        top = _TOP + 12 + 16 * number
        place = f"x={_WIDTH - _RIGHT + 10} y={top}"
        parts.append(f"<text class=label {place} style='fill:{color}'>{escape(name)}</text>")
    height = max(_HEIGHT, _TOP + 16 * len(kept) + 10)
    return f"<svg width={_WIDTH} height={height} role=img>{''.join(parts)}</svg>"


def _drawn(piece: Sequence[Point], across: "_Axis", up: "_Axis", color: str) -> str:
    places = [(f"{across.place(x):.1f}", f"{up.place(y):.1f}") for x, y in piece]
    line = " ".join(",".join(place) for place in places)
    drawn = f"<polyline fill=none stroke={color!r} stroke-width=1.6 points={line!r} />"
    if len(places) > 1:
        return drawn
    # A line of one point would be invisible.
    return f"{drawn}<circle cx={places[0][0]} cy={places[0][1]} r=2.5 fill={color!r} />"


def _pieces(points: Sequence[Point], breaks: Sequence[float]) -> list[list[Point]]:
    """The points between each two breaks, thinned to about 600 in total."""
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    pieces: dict[int, list[Point]] = {}
    ordered = sorted(breaks)
    for point in finite:
        pieces.setdefault(bisect.bisect_right(ordered, point[0]), []).append(point)
    return [thinned(piece, math.ceil(_MOST_POINTS * len(piece) / len(finite))) for piece in pieces.values()]


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most ``most`` points. Each is the mean of a stretch in both coordinates, which keeps the trend."""
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    size = -(-len(finite) // most)
    if size <= 1:
        return finite
    stretches = [finite[start : start + size] for start in range(0, len(finite), size)]
    return [
        (sum(x for x, _ in stretch) / len(stretch), sum(y for _, y in stretch) / len(stretch))
        for stretch in stretches
    ]


class _Axis:
    """A linear scale from values to pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        if high <= low:
            low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
        self.low, self.high, self.first, self.last = low, high, first, last

    def place(self, value: float) -> float:
        return self.first + (self.last - self.first) * (value - self.low) / (self.high - self.low)


def _grid(across: _Axis, up: _Axis, unit: str) -> str:
    parts = []
    for value in ticks(up.low, up.high, 5):
        y = f"{up.place(value):.1f}"
        parts.append(f"<line x1={_LEFT} x2={_WIDTH - _RIGHT} y1={y} y2={y} stroke='#eee' />")
        parts.append(f"<text class=label x={_LEFT - 8} y={y} dy=4 text-anchor=end>{short(value)}</text>")
    for value in ticks(across.low, across.high, 8):
        x = f"{across.place(value):.1f}"
        parts.append(
            f"<text class=label x={x} y={_HEIGHT - _BOTTOM + 16} text-anchor=middle>{short(value)}</text>"
        )
    parts.append(
        f"<text class=label x={_WIDTH - _RIGHT + 10} y={_HEIGHT - _BOTTOM + 16}>{escape(unit)}</text>"
    )
    return "".join(parts)
