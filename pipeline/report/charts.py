"""Draws bars and histograms as SVG text for pages without external assets.

Every chart has its title and unit as text, its numbers next to its bars, and a tooltip on each bar. The
colors are those of Okabe and Ito, which color-blind readers can distinguish.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipeline.report.axis import short, ticks

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7f7f7f")
MOST_BARS = 30
_WIDTH = 860
_BAR, _LANE, _GAP = 16, 12, 6
_VALUE_ROOM = 110
_LETTER = 6.9
_TOP = 26


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart. ``values`` are in the order of the chart's series."""

    name: str
    values: tuple[float, ...]


def bars(
    rows: Sequence[Bar], unit: str, series: Sequence[str] = (), *, shares: bool = False, stacked: bool = True
) -> str:
    """Horizontal bars of one or several parts, with a legend for several.

    ``stacked`` parts are drawn end to end with their sum as the number. Other parts are drawn below each
    other, each with its number. ``shares`` shows values between 0 and 1 as percentages. A last bar sums up
    the rows beyond 30, except for shares and unstacked parts, which have no sum.
    """
    visible, note = _shortened(rows, summed=stacked and not shares)
    if not visible:
        return "<p>None.</p>"
    names = max(len(row.name) for row in visible) * _LETTER
    left = min(260.0, max(60.0, names)) + 14
    lanes = 1 if stacked else max(1, len(series))
    pitch = (_BAR if stacked else _LANE) * lanes + _GAP
    top = _TOP + (22 if series else 0)
    bottom = top + pitch * len(visible)
    axis = _Axis(max(_reach(row, stacked) for row in visible), left, _WIDTH - _VALUE_ROOM, shares)
    parts = [axis.grid(top, bottom, unit), _legend(series, left)]
    for number, row in enumerate(visible):
        parts.append(_row(row, top + number * pitch, axis, series, stacked))
    return _svg(bottom + 40, unit, parts) + note


def _shortened(rows: Sequence[Bar], summed: bool) -> tuple[list[Bar], str]:
    visible, rest = list(rows[:MOST_BARS]), rows[MOST_BARS:]
    if not rest:
        return visible, ""
    if summed:
        total = tuple(sum(values) for values in zip(*(row.values for row in rest), strict=True))
        return [*visible, Bar(f"{len(rest)} more", total)], ""
    return visible, f"<p class=note>{len(rest)} more are in the table of languages below.</p>"


def _reach(row: Bar, stacked: bool) -> float:
    return sum(row.values) if stacked else max(row.values, default=0.0)


def _row(row: Bar, top: float, axis: "_Axis", series: Sequence[str], stacked: bool) -> str:
    height = _BAR if stacked else _LANE
    lanes = 1 if stacked else len(row.values)
    middle = top + height * lanes / 2
    parts = [
        f"<text class=label x={axis.left - 8:.1f} y={middle:.1f} dy=.35em text-anchor=end>"
        f"{escape(_clipped(row.name, axis.left - 14))}<title>{escape(row.name)}</title></text>"
    ]
    start = 0.0
    for number, value in enumerate(row.values):
        first = axis.place(start) if stacked else axis.left
        width = axis.place(start + value) - first if stacked else axis.place(value) - first
        y = top if stacked else top + number * height
        tip = f"{row.name}{': ' + series[number] if series else ''}: {axis.text(value)}"
        if value > 0:
            parts.append(
                f"<rect x={first:.1f} y={y:.1f} width={max(width, 0.5):.1f} height={height - 1} "
                f"fill='{COLORS[number % len(COLORS)]}'><title>{escape(tip)}</title></rect>"
            )
        if not stacked:
            parts.append(
                f"<text class=small x={axis.place(value) + 6:.1f} y={y + height / 2:.1f} dy=.35em>"
                f"{axis.text(value)}</text>"
            )
        start += value if stacked else 0.0
    if stacked:
        parts.append(
            f"<text class=label x={axis.place(start) + 6:.1f} y={middle:.1f} dy=.35em>"
            f"{axis.text(start)}</text>"
        )
    return "".join(parts)


def _clipped(name: str, room: float) -> str:
    most = round(room / _LETTER)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def histogram(counts: Sequence[int], labels: Sequence[str], across: str, up: str) -> str:
    """Vertical bars. ``labels`` name the bars, and ``across`` and ``up`` the axes with their units."""
    width, height = 420, 230
    left, bottom, top = 62, 46, 26
    largest = max(counts, default=0) or 1
    step = (width - left - 8) / len(counts)
    scale = (height - top - bottom) / largest
    floor = height - bottom
    parts = [f"<text class=unit x=0 y=14>{escape(up)}</text>"]
    for value in ticks(0, float(largest), 4):
        y = floor - value * scale
        parts.append(f"<line class=grid x1={left} x2={width - 8} y1={y:.1f} y2={y:.1f} />")
        parts.append(
            f"<text class=small x={left - 6} y={y:.1f} dy=.35em text-anchor=end>{short(value)}</text>"
        )
    every = max(1, math.ceil((max(map(len, labels)) * 6.6 + 4) / step))
    for number, (count, label) in enumerate(zip(counts, labels, strict=True)):
        x = left + number * step
        if count:
            tall = max(count * scale, 0.7)
            parts.append(
                f"<rect x={x + 1:.1f} y={floor - tall:.1f} width={step - 2:.1f} height={tall:.1f} "
                f"fill='{COLORS[0]}'><title>{escape(label)}: {count:,}</title></rect>"
            )
        if number % every == 0:
            parts.append(
                f"<text class=small x={x + step / 2:.1f} y={floor + 14} text-anchor=middle>"
                f"{escape(label)}</text>"
            )
    middle = (left + width) / 2
    parts.append(f"<text class=unit x={middle:.1f} y={height - 6} text-anchor=middle>{escape(across)}</text>")
    return _svg(height, f"{up} by {across}", parts, width)


def _legend(series: Sequence[str], left: float) -> str:
    parts, x = [], left
    for number, name in enumerate(series):
        color = COLORS[number % len(COLORS)]
        parts.append(f"<rect x={x:.1f} y={_TOP - 2} width=11 height=11 fill='{color}' />")
        parts.append(f"<text class=label x={x + 16:.1f} y={_TOP + 8}>{escape(name)}</text>")
        x += 16 + len(name) * _LETTER + 22
    return "".join(parts)


def _svg(height: float, title: str, parts: Sequence[str], width: int = _WIDTH) -> str:
    return (
        f"<svg viewBox='0 0 {width} {height:.0f}' width={width} height={height:.0f} role=img "
        f"aria-label='{escape(title, quote=True)}'>{''.join(parts)}</svg>"
    )


class _Axis:
    """From 0 to the largest value, in pixels."""

    def __init__(self, largest: float, left: float, right: float, shares: bool) -> None:
        self.left, self.right, self._shares = left, right, shares
        self._largest = largest or 1.0

    def place(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self._largest

    def text(self, value: float) -> str:
        if self._shares:
            return f"{value:.2%}" if value < 0.1 else f"{value:.1%}"
        return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2f}"

    def grid(self, top: float, bottom: float, unit: str) -> str:
        parts = [f"<text class=unit x={self.left:.1f} y=12>{escape(unit)}</text>"]
        for value in ticks(0, self._largest, 5):
            x = f"{self.place(value):.1f}"
            label = f"{value * 100:.4g} %" if self._shares else short(value)
            parts.append(f"<line class=grid x1={x} x2={x} y1={top:.1f} y2={bottom:.1f} />")
            parts.append(f"<text class=small x={x} y={bottom + 16:.1f} text-anchor=middle>{label}</text>")
        return "".join(parts)
