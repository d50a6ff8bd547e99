"""Commands that move partitions between nodes."""

from __future__ import annotations

import json

from pulsar_ray.admin.brokers import BrokerNode
from pulsar_ray.admin.moving import PartitionMove
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget

NODES = [BrokerNode("a", "serving", "s1"), BrokerNode("b", "serving", "s2")]
MOVED = PartitionMove("t-partition-0", "s1", "s2", "moved", 100, 0, "", True, "m1")
STAYED = PartitionMove("t-partition-1", "s1", "s2", "broken off", 100, 50, "no room", True, "m2")


def test_a_move_says_where_each_partition_is_then(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers = {"brokers.nodes": NODES}
    ended = [MOVED]
    vars(target.the_admin.topics)["move"] = lambda *_, **__: ended
    moved = run(target, "topics", "move", "t", "b")
    assert (moved.exit_code, moved.stdout) == (0, "t-partition-0 is on b\n")
    ended = [MOVED, STAYED]
    stayed = run(target, "topics", "move", "t", "b")
    assert (stayed.exit_code, stayed.stderr) == (1, "t-partition-1 stays on a: no room\n")
    ended = []
    assert run(target, "topics", "move", "t", "b").stdout == "t is there\n"


def test_nodes_are_drained_and_balanced(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers = {
        "brokers.nodes": NODES,
        "brokers.drain": None,
        "brokers.undrain": None,
        "brokers.balance": [],
        "brokers.moves": [MOVED, STAYED],
    }
    assert "nothing lies there any more" in run(target, "nodes", "drain", "b").stdout
    assert "is being drained" in run(target, "nodes", "drain", "b", "--no-wait").stdout
    assert run(target, "nodes", "undrain", "b").stdout == "b takes partitions\n"
    assert "about as many" in run(target, "nodes", "balance").stdout
    shown = run(target, "nodes", "moves")
    assert "t-partition-0" in shown.stdout
    assert shown.stderr == "t-partition-1: no room\n"
    first, _ = json.loads(run(target, "nodes", "moves", "--json").stdout)
    assert (first["state"], first["move_id"]) == ("moved", "m1")
