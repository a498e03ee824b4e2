"""Reads the queries of the Grafana dashboard as Prometheus gets them."""

import json
import re
from typing import Any

from tests.infra.tools import ROOT

DASHBOARD = ROOT / "infra" / "grafana" / "dashboard.json"
VARIABLES = {"$__rate_interval": "1m", "$run": ".*", "$build": ".*"}


def load() -> dict[str, Any]:
    """The dashboard."""
    data: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return data


def expressions() -> dict[str, str]:
    """Every query by "panel title/letter", with the dashboard's variables filled in."""
    found = {}
    for panel in load()["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found[f"{panel['title']}/{target['refId']}"] = expression
    return found


def metric_names(expression: str) -> set[str]:
    """The names of Ray's metrics in a query."""
    return set(re.findall(r"\bray_\w+", expression))
