"""Compact a topic of prices, and read the latest of each fruit as a table.

    python examples/compacted_topic.py

Works without any preparation: if no Ray runs on this machine, the first `Client()` starts an embedded broker
in the background, which ends by itself. Stored is in ~/.pulsar-ray, or where PULSAR_RAY_DATA_DIR says.
"""

from __future__ import annotations

import time

import pulsar_ray

TOPIC = "latest-prices"


def main() -> None:
    """Publish prices, compact them, and read what is left."""
    with pulsar_ray.Admin() as admin:
        client = pulsar_ray.Client()
        prices = client.create_producer(TOPIC)
        for day in range(30):
            prices.send_async(b"%d" % (100 + day), lambda *_: None, partition_key="apple")
            prices.send_async(b"%d" % (200 - day), lambda *_: None, partition_key="pear")
        prices.flush()
        prices.send(None, partition_key="pear")  # nobody sells pears any more

        admin.topics.compact(TOPIC)
        while (status := admin.topics.compaction_status(TOPIC))["status"] == "RUNNING":
            time.sleep(0.05)
        removed = admin.topics.stats(TOPIC)["compaction"]["lastCompactionRemovedEventCount"]

        with client.create_table_view(TOPIC) as table:
            latest = table.get("apple")
            print(
                f"{status['status']}: {removed} messages removed, {len(table)} left, apples cost {latest!r}"
            )
        client.close()


if __name__ == "__main__":
    main()
