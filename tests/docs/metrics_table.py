"""The table of metrics in docs/metrics.md: python -m tests.docs.metrics_table prints it."""

from __future__ import annotations

from pulsar_ray.model.metric_catalogue import ALL_METRICS, Metric


def metrics_rows() -> list[str]:
    """A line for each metric."""
    return [_row(metric) for metric in ALL_METRICS]


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.query_name}` | {metric.kind.value} | {labels} | {metric.help} |"


if __name__ == "__main__":
    print("\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *metrics_rows()]))
