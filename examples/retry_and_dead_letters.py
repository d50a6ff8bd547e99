"""Payments that work at the second attempt, have to wait, or end as dead letters.

    python examples/retry_and_dead_letters.py

A failed message comes again after a growing delay. One that cannot succeed just now is sent to the retry
letter topic, from where it comes later, and does not stand in the way meanwhile. Messages that fail too often
are moved to the dead letter topic, where somebody looks at them; `pulsar-ray topics redrive` (here:
`Admin.topics.redrive`) sends them back once the reason is gone.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pulsar_ray

PAYMENTS = 30
DECLINED = {7, 21}
"""Payments that fail until their cards are unblocked."""
POLICY = pulsar_ray.ConsumerDeadLetterPolicy(
    max_redeliver_count=2,
    # Created with the dead letter topic: without a subscription nothing there would be kept.
    initial_subscription_name="support",
)


class Declined(Exception):
    """The card is blocked."""


class BankIsClosed(Exception):
    """Nothing can be done before the bank opens."""


def pay(number: int, message: pulsar_ray.Message, unblocked: threading.Event) -> None:
    """The work."""
    if number in DECLINED and not unblocked.is_set():
        raise Declined(f"payment {number}")
    if number % 5 == 0 and message.properties().get("RECONSUMETIMES") is None:
        raise BankIsClosed(f"payment {number}")


def serve(
    client: pulsar_ray.Client, paid: Counter[int], unblocked: threading.Event, end: threading.Event
) -> None:
    """Take payments until the end."""
    consumer = client.subscribe(
        "payments",
        "billing",
        pulsar_ray.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=POLICY,
        # 50 ms before the second attempt, then 100 ms, ... up to 1 s.
        negative_ack_redelivery_backoff=pulsar_ray.MultiplierRedeliveryBackoff(50, 1000, 2.0),
    )
    while not end.is_set():
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar_ray.Timeout:
            continue
        number = int(message.data())
        try:
            pay(number, message, unblocked)
        except Declined:
            consumer.negative_acknowledge(message)
        except BankIsClosed:
            consumer.reconsume_later(message, timedelta(milliseconds=300), {"reason": "closed"})
        else:
            paid[number] += 1
            consumer.acknowledge(message)
    consumer.close()


def main() -> None:
    paid: Counter[int] = Counter()
    unblocked, end = threading.Event(), threading.Event()
    with pulsar_ray.Client() as client, pulsar_ray.Admin() as admin:
        client.subscribe("payments", "billing", pulsar_ray.ConsumerType.Shared).close()
        producer = client.create_producer("payments")
        producer.send_many([b"%d" % number for number in range(PAYMENTS)])
        worker = threading.Thread(target=serve, args=(client, paid, unblocked, end))
        worker.start()

        # `pulsar-ray topics peek-messages payments-billing-DLQ -s support -n 10` shows the same.
        letters = "payments-billing-DLQ"
        support = client.subscribe(letters, "reports", initial_position=pulsar_ray.InitialPosition.Earliest)
        dead = sorted(int(support.receive(60_000).data()) for _ in DECLINED)
        print(f"dead letters: payments {dead[0]} and {dead[1]}; {len(paid)} are paid")

        unblocked.set()
        moved = admin.topics.redrive(letters, subscription="support")
        while len(paid) < PAYMENTS:
            end.wait(0.05)
        end.set()
        worker.join()
    print(f"{sum(moved.values())} were sent back; all {len(paid)} payments are paid")


if __name__ == "__main__":
    main()
