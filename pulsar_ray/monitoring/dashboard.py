"""Makes Grafana's JSON of the panels.

`python -m pulsar_ray.monitoring.dashboard` writes `dashboard.json` anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pulsar_ray.monitoring.panels import ROWS, VARIABLES, Panel, Row

DASHBOARD_FILE = Path(__file__).with_name("dashboard.json")
UID = "pulsar-ray"
"""Grafana's name of the dashboard: one that is installed again replaces the former one."""
TITLE = "pulsar_ray"

# Grafana 10: later ones take it as it is, and Ray's own dashboards are older.
SCHEMA_VERSION = 38
# Grafana's grid has 24 columns.
GRID_WIDTH = 24
STAT_SIZE = (3, 4)
GRAPH_SIZE = (12, 8)
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "Topics, subscriptions and stores of a pulsar_ray broker.",
        "tags": ["pulsar_ray", "ray"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _panels(ROWS),
    }


def dashboard_text() -> str:
    """The dashboard as the text of a file."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
    }
    return [source, *(_variable(name, metric.query_name) for name, metric in VARIABLES.items())]


def _variable(name: str, metric: str) -> dict[str, Any]:
    """A choice among the values of a label; without one, everything."""
    return {
        "type": "query",
        "name": name,
        "label": "Ray session" if name == "SessionName" else name,
        "datasource": _DATASOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        # Also series without the label: of what a partition drops, no subscription is named.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def _panels(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """All panels from top to bottom; those of a folded row are in the row."""
    laid_out: list[dict[str, Any]] = []
    number = 0
    top = 0
    for row in rows:
        number += 1
        heading: dict[str, Any] = {
            "type": "row",
            "id": number,
            "title": row.title,
            "collapsed": row.is_folded,
            "gridPos": {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1},
            "panels": [],
        }
        laid_out.append(heading)
        members = heading["panels"] if row.is_folded else laid_out
        top += 1
        left = 0
        height = 0
        for panel in row.panels:
            number += 1
            width, height = STAT_SIZE if panel.is_stat else GRAPH_SIZE
            if left + width > GRID_WIDTH:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": width, "h": height}
            members.append(_panel(panel, number, place))
            left += width
        top += height
    return laid_out


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    colours = [(panel.warn, "orange"), (panel.alarm, "red")]
    steps = [{"value": at, "color": colour} for at, colour in colours if at is not None]
    is_judged = bool(steps)
    base = {"value": None, "color": "green"}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.is_stat else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": [base, *steps] if is_judged else [base]},
    }
    if not panel.is_stat:
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _STAT_OPTIONS if panel.is_stat else _GRAPH_OPTIONS,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


_STAT_OPTIONS = {
    "colorMode": "value",
    "graphMode": "area",
    "justifyMode": "auto",
    "textMode": "value",
    "orientation": "auto",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}
_GRAPH_OPTIONS = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}

if __name__ == "__main__":
    DASHBOARD_FILE.write_text(dashboard_text(), encoding="utf-8")
