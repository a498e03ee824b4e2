"""Draws the dashboard from Prometheus' results, with the JSON's panels, positions and legends.

The charts are our own. They show the results of the queries, not Grafana's look.
"""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from pipeline.report.line_chart import Line, line_chart
from tests.infra import dashboard
from tests.infra.prometheus import Series

_STYLE = """
body { font: 14px sans-serif; margin: 16px; color: #222; background: #f4f5f5; width: 1820px }
main { display: grid; grid-template-columns: repeat(2, 1fr); gap: 10px }
section { background: #fff; border: 1px solid #ddd; padding: 8px 12px }
h2 { font-size: 14px; margin: 0 0 6px } .label { font-size: 11px; fill: #555 } .value { font-size: 32px }
"""


def page(panels: Mapping[str, Series], explained: Mapping[str, str]) -> str:
    """One page without external assets. For an empty query it shows the reason from ``explained``."""
    start = min(float(one["values"][0][0]) for series in panels.values() for one in series)
    parts = []
    for panel in dashboard.load()["panels"]:
        names = [f"{panel['title']}/{target['refId']}" for target in panel.get("targets", [])]
        if not names:
            continue
        lines = [
            Line(_legend(target, one), [(float(at) - start, float(value)) for at, value in one["values"]])
            for name, target in zip(names, panel["targets"], strict=True)
            for one in panels[name]
        ]
        notes = "".join(f"<p>{escape(name)}: {escape(explained[name])}</p>"
                        for name in names if not panels[name])  # fmt: skip
        drawn = (
            _stat(lines) if panel["type"] in ("stat", "gauge") else line_chart(lines, "s") if lines else ""
        )
        parts.append(f"<section><h2>{escape(panel['title'])}</h2>{drawn}{notes}</section>")
    title = escape(dashboard.load()["title"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        "<p>Drawn by tests/infra/dashboard_page.py from a real Prometheus; this is not Grafana.</p>"
        f"<main>{''.join(parts)}</main>\n"
    )


def _legend(target: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    labels: Mapping[str, str] = one["metric"]
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), target["legendFormat"])


def _stat(lines: list[Line]) -> str:
    return "".join(f"<div class=value>{line.points[-1][1]:.5g}</div>{escape(line.name)}" for line in lines)
