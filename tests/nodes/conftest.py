"""Nodes made of namespaces, for each test its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import NoNamespaces, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A network without nodes."""
    try:
        made = World(tmp_path)
    except NoNamespaces as refusal:
        pytest.skip(
            f"nodes need network, mount, PID and UTS namespaces, which this machine refuses: {refusal}"
        )
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def ray_nodes(world: World) -> RayNodes:
    """A head node with Ray and the broker on it. Workers are a test's own affair: `add_worker`."""
    try:
        nodes = RayNodes(world)
    except NoNamespaces as refusal:
        pytest.skip(f"this machine refuses the namespaces of a node: {refusal}")
    nodes.start_head()
    return nodes
