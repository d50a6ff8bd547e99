"""One worker at a time handles a customer's orders, while workers come and go.

The orders of a customer stay in order.

    python examples/keyed_consumers.py

A Key_Shared subscription divides its messages by key. When a worker joins, the keys that move to it wait
until their former worker has acknowledged what it has of them; all others flow on.
"""

from __future__ import annotations

import threading

import pulsar_ray

CUSTOMERS = [f"customer-{number}" for number in range(40)]
ORDERS = 30
"""Of each customer, in two halves; a second worker joins between them."""

Handled = dict[str, list[tuple[str, int]]]


def work(client: pulsar_ray.Client, name: str, handled: Handled, all_done: threading.Event) -> None:
    """One worker: notes who handled which order of a customer."""
    consumer = client.subscribe(
        "orders-by-customer",
        "workers",
        pulsar_ray.ConsumerType.KeyShared,
        consumer_name=name,
        receiver_queue_size=20,
    )
    while not all_done.is_set():
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar_ray.Timeout:
            continue
        handled[message.partition_key()].append((name, int(message.data())))
        consumer.acknowledge(message)
        if sum(map(len, handled.values())) == len(CUSTOMERS) * ORDERS:
            all_done.set()
    consumer.close()


def main() -> None:
    handled: Handled = {customer: [] for customer in CUSTOMERS}
    all_done = threading.Event()
    with pulsar_ray.Client() as client:
        client.subscribe("orders-by-customer", "workers", pulsar_ray.ConsumerType.KeyShared).close()
        producer = client.create_producer("orders-by-customer")
        workers: list[threading.Thread] = []
        for name, orders in (("ann", range(ORDERS // 2)), ("bob", range(ORDERS // 2, ORDERS))):
            workers.append(threading.Thread(target=work, args=(client, name, handled, all_done)))
            workers[-1].start()
            for order in orders:
                producer.send_many([b"%d" % order] * len(CUSTOMERS), partition_keys=CUSTOMERS)
        for worker in workers:
            worker.join()
    in_order = sum([order for _, order in orders] == list(range(ORDERS)) for orders in handled.values())
    print(f"{in_order} customers' orders were handled in order")


if __name__ == "__main__":
    main()
