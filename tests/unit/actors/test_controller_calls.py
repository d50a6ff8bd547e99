"""The controller's parts have the calls that it declares."""

from __future__ import annotations

from pulsar_ray.actors.controller import CONTROLLER_CALLS
from pulsar_ray.actors.stores.lost_stores import LostStores
from pulsar_ray.actors.stores.partition_moves import PartitionMoves
from pulsar_ray.broker.catalog.administration.administration import Administration
from pulsar_ray.broker.catalog.schemas.schema_registry import SchemaRegistry

PARTS = {
    "administration": Administration,
    "schemas": SchemaRegistry,
    "moves": PartitionMoves,
    "lost_stores": LostStores,
}


def test_all_that_is_declared_is_there() -> None:
    assert CONTROLLER_CALLS.keys() == PARTS.keys()
    for part, methods in CONTROLLER_CALLS.items():
        assert [method for method in methods if not hasattr(PARTS[part], method)] == []
