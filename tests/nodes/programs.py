"""Programs that tests run on nodes.

The first two stop when `stop` is in the shared directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.world import SHARED, Node, World

PRODUCE = f"""
import os, time, pulsar_ray
from pulsar_ray.errors import PulsarException
confirmed = open("{SHARED}/confirmed", "w", buffering=1)
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    producer = client.create_producer("t", send_timeout_millis=10_000)
    number = 0
    while not os.path.exists("{SHARED}/stop"):
        try:
            producer.send(b"%d" % number)
            confirmed.write(f"{{number}}\\n")
        except PulsarException:
            time.sleep(0.1)
        number += 1
        time.sleep(0.01)
"""
CONSUME = f"""
import os, pulsar_ray
received = open("{SHARED}/received", "w", buffering=1)
class Listener(pulsar_ray.ConsumerEventListener):
    def partition_replaced(self, consumer, partition_id):
        open("{SHARED}/replaced", "a").write(f"{{partition_id}}\\n")
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe(
        "t", "s", initial_position=pulsar_ray.InitialPosition.Earliest, consumer_event_listener=Listener()
    )
    open("{SHARED}/subscribed", "w").close()
    while not os.path.exists("{SHARED}/stop"):
        try:
            message = consumer.receive(timeout_millis=1_000)
        except pulsar_ray.Timeout:
            continue
        received.write(message.data().decode() + "\\n")
        consumer.acknowledge(message)
"""
READ_ALL = """
import pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    reader = client.create_reader("t", pulsar_ray.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data().decode())
    answer(found)
"""
SENT = 100
FLOW_S = 240.0


class Flow:
    """Checks what PRODUCE and CONSUME do on the nodes of a world."""

    def __init__(self, world: World) -> None:
        self._shared = world.shared

    def told(self, name: str) -> list[str]:
        """The lines of "confirmed", "received" or "output" until now."""
        path = self._shared / name
        return path.read_text().splitlines() if path.exists() else []

    @contextlib.contextmanager
    def programs(self, node: Node, **variables: str) -> Iterator[None]:
        """Run both on a node, from the first messages that arrive to the end of the context."""
        with (
            (self._shared / "output").open("a") as output,
            node.start("python", "-c", PRODUCE, output=output, **variables) as producing,
            node.start("python", "-c", CONSUME, output=output, **variables) as consuming,
        ):
            try:
                wait_until(lambda: len(self.told("received")) > SENT, FLOW_S, "the first messages")
                yield
            finally:
                (self._shared / "stop").touch()
                print("\n".join(self.told("output"))[-4000:])
            assert producing.wait(FLOW_S) == 0
            assert consuming.wait(FLOW_S) == 0

    def check(self, what: str) -> None:
        """All that was confirmed until now arrives, and more after it."""
        enough = len(self.told("confirmed")) + SENT
        wait_until(lambda: len(self.told("confirmed")) > enough, FLOW_S, f"confirmations after {what}")
        wait_until(
            lambda: not set(self.told("confirmed")[:enough]) - set(self.told("received")),
            FLOW_S,
            f"all confirmed messages after {what}",
        )
