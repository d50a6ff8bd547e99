"""docs/metrics.md lists the metrics of the catalogue, and names no others."""

from __future__ import annotations

import re
from pathlib import Path

from pulsar_ray.broker.partition.publishing.publish_intake import REFUSAL_REASONS
from pulsar_ray.model.metric_catalogue import ALL_METRICS, SERIES_NAMES
from tests.docs.metrics_table import metrics_rows

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_table_is_the_catalogue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = [line for line in text.splitlines() if line.startswith("| `ray_pulsar_ray_")]
    assert shown == metrics_rows(), "python -m tests.docs.metrics_table prints the table"


def test_the_page_names_only_series_that_are_there() -> None:
    names = set(re.findall(r"ray_pulsar_ray_\w+", PAGE.read_text(encoding="utf-8")))
    assert names <= SERIES_NAMES | {metric.query_name for metric in ALL_METRICS}


def test_every_reason_of_a_refusal_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [reason for reason in REFUSAL_REASONS if f"`{reason}`" not in text] == []
