"""The dashboard shows metrics that exist, on panels that have a place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_ray.model.metric_catalogue import ALL_METRICS
from pulsar_ray.monitoring.dashboard import DASHBOARD_FILE, GRID_WIDTH, dashboard, dashboard_text
from pulsar_ray.monitoring.panels import ROWS, VARIABLES
from tests.unit.monitoring.queries import metrics_of, unknown_names

QUERIES = [
    pytest.param(query.expr, query.legend, id=f"{row.title.split()[0]}: {panel.title}: {query.legend}")
    for row in ROWS
    for panel in row.panels
    for query in panel.queries
]


def panels() -> Iterator[dict[str, Any]]:
    for panel in dashboard()["panels"]:
        yield panel
        yield from panel.get("panels", ())


def test_the_file_in_the_package_is_what_the_panels_make() -> None:
    remedy = "python -m pulsar_ray.monitoring.dashboard writes it"
    assert DASHBOARD_FILE.read_text(encoding="utf-8") == dashboard_text(), remedy


@pytest.mark.parametrize(("expr", "legend"), QUERIES)
def test_a_query_names_metrics_and_labels_of_the_catalogue(expr: str, legend: str) -> None:
    assert unknown_names(expr) == []
    assert metrics_of(expr)
    known = {label for metric in metrics_of(expr) for label in metric.labels}
    assert {label.strip("{}") for label in re.findall(r"{{\w+}}", legend)} <= known


@pytest.mark.parametrize(
    ("expr", "unknown"),
    [
        ("rate(ray_pulsar_ray_messages_inn_total[1m])", ["ray_pulsar_ray_messages_inn_total"]),
        ("ray_pulsar_ray_producers{consumer='c'}", ["ray_pulsar_ray_producers{consumer}"]),
        ("sum by (subscription) (ray_pulsar_ray_producers)", ["subscription"]),
        ("sum by (le) (ray_pulsar_ray_fsync_seconds_sum)", ["le"]),
    ],
)
def test_what_the_catalogue_has_not_is_found(expr: str, unknown: list[str]) -> None:
    assert unknown_names(expr) == unknown


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_each_metric_is_on_a_panel(metric: Any) -> None:
    assert any(
        metric in metrics_of(query.expr) for row in ROWS for panel in row.panels for query in panel.queries
    )


def test_panels_have_a_number_and_a_place_of_their_own() -> None:
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert all(x < GRID_WIDTH for x, _ in cells), panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["description"].endswith(".") for panel in panels() if panel["type"] != "row")


def test_variables_in_queries_are_defined() -> None:
    defined = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", dashboard_text()))
    assert used - {"__rate_interval", "__all"} == defined == {"datasource", *VARIABLES}
