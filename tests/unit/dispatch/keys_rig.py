"""A Key_Shared subscription in which every message is known by its key."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.dispatch.inspect.key_stats import key_shared_consumer_stats
from pulsar_ray.dispatch.key_shared.hash_regions import DEFAULT_KEY_SHARED, KeySharedSpec
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, Slotting, slots_of
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.enums import ConsumerType
from tests.unit.dispatch.rig import Rig


class KeysRig:
    """Ledger 1 with a message for each key, in blocks of `per_block` rows that are entries."""

    def __init__(
        self, keys: Sequence[str], per_block: int = 4, settings: DispatchSettings | None = None
    ) -> None:
        settings = settings or DispatchSettings()
        self.keys = list(keys)
        slotting = Slotting.RING if settings.key_shared_replica_points else Slotting.RANGE
        parts = [self.keys[i : i + per_block] for i in range(0, len(self.keys), per_block)]
        slots: list[Slots] = []
        for part in parts:
            of_rows = slots_of(part, slotting)
            slots.append(of_rows if len(part) > 1 else int(of_rows[0]))
        self.rig = Rig([len(part) for part in parts], settings, slots=slots)
        self.dispatcher = self.rig.dispatcher

    def add(self, incarnation: int, credit: int = 1000, spec: KeySharedSpec = DEFAULT_KEY_SHARED) -> None:
        self.rig.add(incarnation, credit, ConsumerType.KeyShared, key_shared=spec)

    def granted(self) -> dict[int, list[str]]:
        """The keys of what each consumer is granted, in order."""
        found: dict[int, list[str]] = {}
        for incarnation, first, rows in self.rig.told():
            found.setdefault(incarnation, []).extend(
                self.keys[first + row] for start, end in rows for row in range(start, end)
            )
        return found

    def entries(self) -> dict[int, list[int]]:
        """The entries each consumer is granted, in order."""
        found: dict[int, list[int]] = {}
        for incarnation, first, rows in self.rig.told():
            found.setdefault(incarnation, []).extend(
                first + row for start, end in rows for row in range(start, end)
            )
        return found

    def acknowledge(self, incarnation: int, *entries: int) -> None:
        self.dispatcher.acknowledge(incarnation, [(1, entry, entry) for entry in entries])

    def nack(self, incarnation: int, *entries: int) -> None:
        self.dispatcher.negative_acknowledge(incarnation, [(1, entry, (), -1) for entry in entries])

    def draining(self, incarnation: int) -> dict[int, int]:
        """Unacknowledged messages by draining hash."""
        stats = key_shared_consumer_stats(self.dispatcher, incarnation)
        drains = {drain["hash"]: drain["unackMsgs"] for drain in stats["drainingHashes"]}
        assert stats["drainingHashesCount"] == len(drains)
        assert stats["drainingHashesUnackedMessages"] == sum(drains.values())
        return drains
