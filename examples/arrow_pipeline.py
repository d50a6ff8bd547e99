"""Columns in, columns out: half a million rows without an object for each.

    python examples/arrow_pipeline.py

One stage publishes a table of trades, the next receives whatever has arrived as a table, works on its
columns, and sends the result on to another topic.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

import pulsar_ray

ROWS = 500_000
SYMBOLS = np.array(["AAA", "BBB", "CCC", "DDD"])


def trades(rows: int, seed: int) -> pa.Table:
    """Make up trades: symbols as keys, eight bytes as values.

    A value is the price in cents and the quantity.
    """
    random = np.random.default_rng(seed)
    values = np.empty((rows, 2), dtype="<u4")
    values[:, 0] = random.integers(1_000, 100_000, rows)
    values[:, 1] = random.integers(1, 1_000, rows)
    # Binary of fixed width over the array's own memory; send_arrow turns it into a binary column.
    packed = pa.Array.from_buffers(pa.binary(8), rows, [None, pa.py_buffer(values)])
    keys = pa.array(SYMBOLS[random.integers(0, len(SYMBOLS), rows)])
    return pa.table({"key": keys, "value": packed.cast(pa.binary())})


def values_of(packed: pa.BinaryArray) -> np.ndarray:
    """Price and quantity of each row, from the array's own memory."""
    _, offsets, data = packed.buffers()
    first = np.frombuffer(offsets, dtype="<i4")[packed.offset]
    numbers = np.frombuffer(data, dtype="<u4", count=2 * len(packed), offset=first)
    return numbers.reshape(-1, 2).astype(np.uint64)


def turnover(table: pa.Table) -> pa.Table:
    """Turnover per symbol of a received table."""
    # Values of fixed width lie one behind the other.
    numbers = np.concatenate([values_of(chunk) for chunk in table.column("value").chunks])
    amounts = pa.table({"key": table.column("key"), "amount": pa.array(numbers[:, 0] * numbers[:, 1])})
    return amounts.group_by("key").aggregate([("amount", "sum")])


def main() -> None:
    with pulsar_ray.Client() as client:
        incoming = client.subscribe("trades", "turnover")
        results = client.subscribe("turnover", "report")
        producer = client.create_producer("trades", compression_type=pulsar_ray.CompressionType.LZ4)
        sums = client.create_producer("turnover")

        began = time.perf_counter()
        producer.send_arrow(trades(ROWS, seed=1))
        print(f"{ROWS:,} rows stored durably in {time.perf_counter() - began:.2f} s")

        began = time.perf_counter()
        rows = 0
        while rows < ROWS:
            table = incoming.receive_arrow(max_messages=100_000, timeout_millis=30_000)
            rows += table.num_rows
            partial = turnover(table)
            sums.send_many(
                [str(amount).encode() for amount in partial.column("amount_sum").to_pylist()],
                partition_keys=partial.column("key").to_pylist(),
            )
            # Only now: if this program dies before, the rows come again.
            incoming.acknowledge_arrow(table)
        print(f"received and summed in {time.perf_counter() - began:.2f} s")

        total: dict[str, int] = {}
        while results.has_message_available():
            message = results.receive(timeout_millis=30_000)
            total[message.partition_key()] = total.get(message.partition_key(), 0) + int(message.data())
            results.acknowledge(message)
        for symbol in sorted(total):
            print(f"{symbol} {total[symbol]:,}")


if __name__ == "__main__":
    main()
