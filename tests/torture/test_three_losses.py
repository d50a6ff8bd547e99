"""Writes that were confirmed and not synced, one flipped bit, cut files: against a whole broker.

The Jepsen analysis of NATS JetStream 2.12.1 found that each of them lost confirmed messages without a word,
or a whole stream. tests/unit/managed_ledger/test_losses.py does the same at every system call of the log.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.errors import PulsarException
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.message_id import MessageId as Id
from pulsar_ray.testing.stub_cluster import STORE
from tests.power_cut import PowerCutDisk
from tests.torture.damage import cut, flip
from tests.torture.serving import BILLS, MESSAGES, ORDERS, Serving


def after_a_power_cut(
    directory: Path, monkeypatch: pytest.MonkeyPatch, survivors: random.Random | None, ignored: str = "none"
) -> tuple[Path, dict[Id, bytes], list[bytes]]:
    """Publish and acknowledge until the power goes; what is left, what was confirmed, and acknowledged."""
    data = directory / "data"
    disk = PowerCutDisk(data)
    disk.ignored_suffix = ignored
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_ray.testing.stub_cluster.FaultyDisk", lambda: disk)
        disk.install(patch)
        serving = Serving(data)
        confirmed = serving.publish(ORDERS)
        acknowledged = serving.consume(ORDERS, MESSAGES // 2, MESSAGES // 2)
        # What was not synced is not there, or any pages of it are.
        left = disk.left(directory / "left", survivors)
        serving.end(kill=True)
    shutil.copy(data / "meta.sqlite", left / "meta.sqlite")  # SQLite syncs by itself
    return left, confirmed, acknowledged


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_confirmed_messages_and_acknowledgments_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    survivors = None if seed is None else random.Random(seed)
    left, confirmed, acknowledged = after_a_power_cut(tmp_path, monkeypatch, survivors)
    again = Serving(left)
    assert again.read(ORDERS, len(confirmed)) == confirmed
    assert len(acknowledged) == MESSAGES // 2
    rest = again.consume(ORDERS, MESSAGES, MESSAGES - len(acknowledged))
    assert sorted(acknowledged + rest) == sorted(confirmed.values())
    again.end()


def test_the_same_check_finds_messages_that_were_never_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, confirmed, _ = after_a_power_cut(tmp_path, monkeypatch, None, ignored=".seg")
    again = Serving(left)
    try:
        found = again.read(ORDERS)
    except PulsarException:
        found = {}
    assert found != confirmed
    again.end(kill=True)


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("pattern", ["*.seg", "manifest-*", "epoch", "s/*/cursor-*"])
def test_damage_costs_what_is_named_and_nothing_else(
    tmp_path: Path, harm: Callable[[Path, random.Random], None], pattern: str
) -> None:
    serving = Serving(tmp_path)
    confirmed = {topic: serving.publish(topic) for topic in (ORDERS, BILLS)}
    for topic in confirmed:
        serving.consume(topic, MESSAGES // 2, MESSAGES // 2)
    row = serving.cluster.partition(ORDERS).directory
    serving.end()
    write_identity(tmp_path, StoreIdentity(STORE))
    seed = random.randrange(1 << 30)
    print("seed", seed)
    file = random.Random(seed).choice(sorted(row.glob(pattern)))
    harm(file, random.Random(seed))
    damages = verify_directory(tmp_path).damages
    assert all(damage.topic == ORDERS for damage in damages), damages
    again = Serving(tmp_path)
    # Nothing is misread, no other topic is concerned, and a topic that is damaged is not deleted.
    assert again.read(BILLS, MESSAGES) == confirmed[BILLS]
    assert len(again.consume(BILLS, MESSAGES, MESSAGES // 2)) == MESSAGES // 2
    try:
        found = again.read(ORDERS, 0 if damages else MESSAGES)
    except PulsarException:
        assert damages, "a log that is refused is damaged"
        found = {}
    again.end()
    assert found.items() <= confirmed[ORDERS].items()
    assert damages or found == confirmed[ORDERS]
    lost = repair_directory(tmp_path, 1, is_dry_run=False, cuts_damaged=True)
    assert lost.left.is_clean
    named = sum(damage.entries for damage in damages)
    again = Serving(tmp_path)
    found = again.read(ORDERS, MESSAGES - named)
    assert found.items() <= confirmed[ORDERS].items()
    assert len(found) >= MESSAGES - named
    if harm is flip:
        assert named <= 1, "one bit costs one message"
    again.end()
