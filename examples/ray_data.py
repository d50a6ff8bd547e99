"""Sales in a topic, added up by Ray Data, and the sums in another topic.

    python examples/ray_data.py

The range of the topic is a Dataset: tasks read the files beside the broker, and only sums reach this program.
Under a name the result is written once, however often the job is run.
"""

from __future__ import annotations

import os
import random

import pyarrow as pa

os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

import pulsar_ray
import pulsar_ray.data

SALES, SUMS = "all-sales", "sums-of-sales"
GOODS = ("tea", "milk", "bread")


def amounts(block: pa.Table) -> pa.Table:
    """The good and the amount of each sale."""
    values = [int(value) for value in block.column("value").to_pylist()]
    return pa.table({"good": block.column("key"), "amount": pa.array(values, pa.int64())})


def messages(sums: pa.Table) -> pa.Table:
    """A message for each sum."""
    values = [str(amount) for amount in sums.column("sum(amount)").to_pylist()]
    return pa.table({"key": sums.column("good"), "value": values})


def main() -> None:
    """Sell, add up twice, and show what is stored."""
    with pulsar_ray.Client() as client:
        goods = random.Random(1).choices(GOODS, k=3000)
        client.create_producer(SALES).send_many([b"2"] * len(goods), partition_keys=goods)
        sales = pulsar_ray.data.read(SALES, columns=["key", "value"], num_cpus=0.5)
        sums = sales.map_batches(amounts, batch_format="pyarrow").groupby("good").sum("amount")
        for _ in range(2):
            rows = sums.sort("good").map_batches(messages, batch_format="pyarrow").repartition(1)
            pulsar_ray.data.write(rows, SUMS, name="sums", num_cpus=0.5)
        with pulsar_ray.data.batches(SUMS, idle_millis=2000, client=client) as tables:
            found = {row["key"]: int(row["value"]) for table in tables for row in table.to_pylist()}
        assert found == {good: 2 * goods.count(good) for good in GOODS}, found
        print(f"{len(found)} sums of {len(goods)} sales, stored once")


if __name__ == "__main__":
    main()
