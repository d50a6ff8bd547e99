"""`pulsar_ray.tableview`: the name of `pulsar.tableview`."""

from __future__ import annotations

from pulsar_ray.client.consumer.table_view import TableView

__all__ = ["TableView"]
