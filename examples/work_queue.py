"""A work queue: jobs go to free workers, and failed ones again.

    python examples/work_queue.py

A Shared subscription divides its messages among its consumers. A worker acknowledges a job when it is done,
and gives back what failed; what a dying worker held goes to the others.
"""

from __future__ import annotations

import threading
from collections import Counter

import pulsar_ray

JOBS = 60
WORKERS = 3
FAILS_ONCE = 7
"""Every so many jobs one fails at the first attempt."""


class Unlucky(Exception):
    """A job failed; it may work the next time."""


def do_job(number: int, attempt: int) -> None:
    """The work. `attempt` is 0 first."""
    if number % FAILS_ONCE == 0 and attempt == 0:
        raise Unlucky(f"job {number}")


def work(
    client: pulsar_ray.Client, done: Counter[int], failed: Counter[int], all_done: threading.Event
) -> None:
    """One worker. A short receiver queue, so that nobody hoards jobs while others wait."""
    consumer = client.subscribe(
        "jobs",
        "workers",
        pulsar_ray.ConsumerType.Shared,
        receiver_queue_size=2,
        # 100 ms before the second attempt, then 200, 400, ... up to 5 s.
        negative_ack_redelivery_backoff=pulsar_ray.MultiplierRedeliveryBackoff(100, 5_000, 2.0),
    )
    while not all_done.is_set():
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar_ray.Timeout:
            continue
        number = int(message.data())
        try:
            do_job(number, message.redelivery_count())
        except Unlucky:
            failed[number] += 1
            consumer.negative_acknowledge(message)
            continue
        done[number] += 1
        consumer.acknowledge(message)
        if len(done) == JOBS:
            all_done.set()
    consumer.close()


def main() -> None:
    done: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    all_done = threading.Event()
    with pulsar_ray.Client() as client:
        # The subscription must exist before the first job, or nothing keeps it.
        client.subscribe("jobs", "workers", pulsar_ray.ConsumerType.Shared).close()
        producer = client.create_producer("jobs")
        producer.send_many([b"%d" % number for number in range(JOBS)])

        workers = [
            threading.Thread(target=work, args=(client, done, failed, all_done)) for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print(f"{len(done)} jobs done, {len(failed)} of them at the second attempt")


if __name__ == "__main__":
    main()
