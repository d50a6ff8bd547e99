"""The work of a round: each scene is a topic with its producers, subscriptions and readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pulsar_ray import ConsumerType, ProducerAccessMode
from tests.torture.clients import ConsumerPlan, ProducerPlan

SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared
EXCLUSIVE, FAILOVER = ConsumerType.Exclusive, ConsumerType.Failover


class Scene(NamedTuple):
    """`policies` are those of its topic; `reads` says which reads go on beside."""

    name: str
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    partitions: int = 0
    policies: Mapping[str, Any] = {}
    reads: tuple[str, ...] = ()
    ttl_ms: int = 0
    is_sleepy: bool = False
    """Its actors sleep whenever nothing is under way."""
    is_administered: bool = False
    """Somebody makes topics and changes policies beside it."""
    is_compacted: bool = False
    """It is compacted, and so is a table beside it."""

    @property
    def topic(self) -> str:
        domain = "non-persistent" if self.name == "non-persistent" else "persistent"
        return f"{domain}://public/default/{self.name}"

    @property
    def partition_names(self) -> list[str]:
        if not self.partitions:
            return [self.topic]
        return [f"{self.topic}-partition-{index}" for index in range(self.partitions)]

    @property
    def reads_on_ray(self) -> tuple[str, ...]:
        """The reads beside it where there is a Ray."""
        return (*self.reads, "dataset")

    @property
    def letters(self) -> list[str]:
        """The dead letter topics of its subscriptions."""
        return [f"{self.topic}-{plan.subscription}-DLQ" for plan in self.consumers if plan.letters_after]


SCENES = (
    Scene(
        "every-type",
        (ProducerPlan(keys=5), ProducerPlan("async", life_s=4), ProducerPlan("many", most_bytes=2000)),
        (
            ConsumerPlan("shared", nacked_share=0.05, life_s=5),
            ConsumerPlan("grouped", answers="grouped"),
            ConsumerPlan("failover", FAILOVER, "cumulative", life_s=3),
            ConsumerPlan("exclusive", EXCLUSIVE, "cumulative", 1),
        ),
        partitions=2,
        reads=("reader", "bulk"),
    ),
    Scene(
        # A batch of several keys goes where its first message belongs: only single ones keep keys in order.
        "keyed",
        (ProducerPlan(keys=5), ProducerPlan("single", keys=7, life_s=4)),
        (
            ConsumerPlan("keyed", KEY_SHARED, life_s=3, consumers=3),
            ConsumerPlan("grouped", KEY_SHARED, "grouped"),
        ),
        partitions=2,
    ),
    Scene(
        "delayed",
        (
            ProducerPlan(delayed_share=0.6),
            ProducerPlan("single", delayed_share=0.3, keys=4),
            ProducerPlan("async", delayed_share=0.3),
        ),
        (ConsumerPlan("shared", life_s=4, nacked_share=0.02), ConsumerPlan("keyed", KEY_SHARED)),
        reads=("bulk",),
    ),
    Scene(
        "letters",
        (ProducerPlan(fails=True), ProducerPlan("async", fails=True, delayed_share=0.1)),
        (ConsumerPlan("shared", letters_after=2, life_s=4), ConsumerPlan("beside")),
    ),
    Scene(
        "retries",
        (ProducerPlan(fails=True, pause_ms=25),),
        (ConsumerPlan("shared", letters_after=1, retries=True),),
    ),
    Scene(
        "deduplicated",
        (
            ProducerPlan("single", keys=6, keeps_name=True, life_s=1),
            ProducerPlan("sync", keys=9, keeps_name=True, life_s=1),
            ProducerPlan("async", keys=3, keeps_name=True, life_s=2),
        ),
        (ConsumerPlan("failover", FAILOVER, "cumulative"), ConsumerPlan("shared", nacked_share=0.03)),
        partitions=2,
        policies={"deduplication": True},
        reads=("reader",),
    ),
    Scene(
        "chunks",
        (
            ProducerPlan("sync", most_bytes=45_000, keeps_name=True, chunks=True, life_s=1, pause_ms=30),
            ProducerPlan("single", most_bytes=25_000, keeps_name=True, chunks=True, life_s=2, pause_ms=40),
            ProducerPlan("sync", most_bytes=45_000, chunks=True, pause_ms=30),
        ),
        (
            ConsumerPlan("shared", nacked_share=0.05, life_s=4),
            ConsumerPlan("exclusive", EXCLUSIVE, consumers=1),
        ),
        policies={"deduplication": True},
        reads=("reader", "bulk"),
    ),
    Scene(
        "fenced",
        tuple(ProducerPlan(access=ProducerAccessMode.ExclusiveWithFencing, life_s=1) for _ in range(2)),
        (ConsumerPlan("shared"),),
    ),
    Scene(
        "waiting",
        tuple(ProducerPlan(access=ProducerAccessMode.WaitForExclusive, life_s=1) for _ in range(2)),
        (ConsumerPlan("exclusive", EXCLUSIVE, "cumulative", 1),),
    ),
    Scene(
        "sought",
        (ProducerPlan(), ProducerPlan("single")),
        (
            ConsumerPlan("exclusive", EXCLUSIVE, "each", 1, seek_share=0.01),
            ConsumerPlan("up-to", EXCLUSIVE, "cumulative", 1, seek_share=0.01),
            ConsumerPlan("shared", SHARED, "each", 1, seek_share=0.01, nacked_share=0.02),
        ),
        reads=("reader",),
    ),
    Scene(
        "expiring",
        (ProducerPlan(), ProducerPlan("async", delayed_share=0.2)),
        (ConsumerPlan("shared", life_s=2), ConsumerPlan("failover", FAILOVER, "cumulative")),
        policies={"message_ttl": 30},
        ttl_ms=30_000,
    ),
    Scene(
        # What is unacknowledged, or delayed, keeps actors awake: here nothing is for long.
        "sleepy",
        (
            ProducerPlan(pause_ms=1_500, life_s=4),
            ProducerPlan("many", pause_ms=1_500),
        ),
        (
            ConsumerPlan("shared", life_s=6),
            ConsumerPlan("grouped", answers="grouped", consumers=1),
            ConsumerPlan("exclusive", EXCLUSIVE, "each", 1),
        ),
        partitions=3,
        is_sleepy=True,
    ),
    Scene(
        "administered",
        (ProducerPlan(pause_ms=30, life_s=3),),
        (ConsumerPlan("shared", life_s=3),),
        is_administered=True,
    ),
    Scene(
        "compacted",
        (ProducerPlan(keys=5), ProducerPlan("async", keys=3, life_s=4)),
        (ConsumerPlan("shared", life_s=4), ConsumerPlan("failover", FAILOVER, "cumulative")),
        reads=("reader", "bulk"),
        is_compacted=True,
    ),
    Scene(
        "non-persistent",
        (ProducerPlan(), ProducerPlan("async", keys=3)),
        (ConsumerPlan("shared"), ConsumerPlan("failover", FAILOVER)),
    ),
)


def scene_of(name: str) -> Scene:
    """The scene of that name."""
    return next(scene for scene in SCENES if scene.name == name)
