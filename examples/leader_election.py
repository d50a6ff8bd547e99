"""Leader election: one of several candidates writes to a topic, and the next takes over.

    python examples/leader_election.py

A WaitForExclusive producer is created when it is its turn. The candidate that has one is the leader, reads
what was decided before, and goes on from there. A leader that was evicted, or that slept while another one
took over, cannot write any more: its next send raises ProducerFenced.
"""

from __future__ import annotations

import itertools
import threading

import pulsar_ray

CANDIDATES = ("ann", "bob", "cid")
DECISIONS_EACH = 10
TOPIC = "decisions"


def read_decisions(client: pulsar_ray.Client) -> list[str]:
    """All that was decided so far, in order."""
    decided = []
    with client.create_reader(TOPIC, pulsar_ray.MessageId.earliest) as reader:
        while reader.has_message_available():
            decided.append(reader.read_next().data().decode())
    return decided


def lead(name: str) -> None:
    """Wait for the turn, decide a few things, and make room for the next one."""
    with pulsar_ray.Client() as client:
        # Returns when nobody else has the topic, be it in a week.
        producer = client.create_producer(
            TOPIC, name, access_mode=pulsar_ray.ProducerAccessMode.WaitForExclusive
        )
        first = len(read_decisions(client))
        for number in range(first, first + DECISIONS_EACH):
            producer.send(f"{number} by {name}".encode())
        producer.close()


def take_over() -> str:
    """Take the topic away from a leader that hangs; returns the error that it gets."""
    with pulsar_ray.Client() as client:
        hanging = client.create_producer(
            TOPIC, "hanging", access_mode=pulsar_ray.ProducerAccessMode.WaitForExclusive
        )
        client.create_producer(TOPIC, "admin", access_mode=pulsar_ray.ProducerAccessMode.ExclusiveWithFencing)
        try:
            hanging.send(b"a decision that comes too late")
        except pulsar_ray.ProducerFenced as error:
            return type(error).__name__
        return "nothing"


def main() -> None:
    """Run the candidates beside each other."""
    with pulsar_ray.Client() as client:
        assert read_decisions(client) == []
        candidates = [threading.Thread(target=lead, args=(name,)) for name in CANDIDATES]
        for candidate in candidates:
            candidate.start()
        for candidate in candidates:
            candidate.join()
        decided = read_decisions(client)
        numbers = [int(decision.split(" by ")[0]) for decision in decided]
        leaders = [decision.split(" by ")[1] for decision in decided]
        terms = 1 + sum(former != following for former, following in itertools.pairwise(leaders))
        assert numbers == list(range(len(CANDIDATES) * DECISIONS_EACH))
        print(f"{len(decided)} decisions in order by {terms} leaders, one after the other")
        print(f"a leader that was evicted gets {take_over()}")
        assert read_decisions(client) == decided


if __name__ == "__main__":
    main()
