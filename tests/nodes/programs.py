"""Programs that tests run on nodes.

The first two stop when `stop` is in the shared directory.
"""

from __future__ import annotations

from tests.nodes.world import SHARED

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
