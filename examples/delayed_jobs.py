"""Reminders that come when they are due, not when they are sent.

    python examples/delayed_jobs.py

A message with `deliver_after` (or `deliver_at`, in ms since 1970) is stored at once, and delivered on a
Shared or Key_Shared subscription when its time has come; others go past it meanwhile. Nobody has to keep a
timer: the program may end, and the broker may restart.
"""

from __future__ import annotations

import time
from datetime import timedelta

import pulsar_ray

REMINDERS = {"tea": 1.5, "eggs": 0.5, "laundry": 2.5}
"""Seconds from now."""


def main() -> None:
    with pulsar_ray.Client() as client, pulsar_ray.Admin() as admin:
        reminders = client.subscribe("reminders", "kitchen", pulsar_ray.ConsumerType.Shared)
        # Never before its time; by default a message may come up to a second early.
        admin.topics.policies.set("reminders", "delayed_delivery", strict=True)
        producer = client.create_producer("reminders")
        due = {}
        for what, seconds in REMINDERS.items():
            due[what] = time.time() + seconds
            producer.send(what.encode(), deliver_after=timedelta(seconds=seconds))
        producer.send(b"now")

        late = 0.0
        for _ in range(len(REMINDERS) + 1):
            message = reminders.receive(60_000)
            what = message.data().decode()
            if what in due:
                assert time.time() >= due[what], f"{what} came early"
                late = max(late, time.time() - due[what])
            reminders.acknowledge(message)
    print(f"at most {late:.1f} s late")
    print(f"{len(due)} reminders came, none of them early")


if __name__ == "__main__":
    main()
