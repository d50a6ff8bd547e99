"""Functions a test sends into an actor's process, so that it dies at exactly one place."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.format.block import BlockHeader
from pulsar_ray.ledger.disk import SystemDisk


def die(*_: Any) -> None:
    """The end of this process, without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def before_receipts(partition: Any) -> None:
    """Die when the next blocks are written, synced and checked, but not answered."""
    partition._server.intake._on_durable = die


def inside_write(partition: Any) -> None:
    """Die when half of the next write's bytes are in the file."""

    def half(_: SystemDisk, fd: int, buffers: Sequence[Any]) -> int:
        whole = b"".join(bytes(buffer) for buffer in buffers)
        os.write(fd, whole[: len(whole) // 2])
        die()
        return 0

    SystemDisk.writev = half  # type: ignore[assignment]


def refuse_once_in_silence(partition: Any) -> None:
    """The next block finds the disk full, and its refusal gets lost."""
    intake = partition._server.intake
    refusal, refuse = intake._refusal, intake._refuse

    def low_once(_: BlockHeader) -> DiskSpaceLow:
        intake._refusal = refusal
        return DiskSpaceLow("once")

    def lose_once(*_: Any) -> None:
        intake._refuse = refuse

    intake._refusal, intake._refuse = low_once, lose_once


def on_acknowledgment(dispatcher: Any) -> None:
    """Die when the next acknowledgment arrives, before it has any effect."""
    _subscription(dispatcher).core.acknowledge = die


def before_ack_receipts(dispatcher: Any) -> None:
    """Die when the next acknowledgments are durable, but not answered."""
    _subscription(dispatcher)._durability._flush_done = die


def never_flush(dispatcher: Any) -> None:
    """From now on acknowledgments stay in memory."""
    _subscription(dispatcher)._durability._flush = _nothing


def before_farewell(actor: Any) -> None:
    """Die when the controller asks the actor to leave, with everything durable."""
    actor._body.sleeper._host.retire = die


def inside_farewell(actor: Any) -> None:
    """Die when the actor serves nobody any more, and has closed nothing yet."""
    actor._body.sleeper._server.fall_asleep = die


def behind_farewell(actor: Any) -> None:
    """Die with everything closed, before the controller is answered."""
    fall_asleep = actor._body.sleeper._server.fall_asleep

    async def fall_asleep_and_die() -> None:
        await fall_asleep()
        die()

    actor._body.sleeper._server.fall_asleep = fall_asleep_and_die


def before_the_end(controller: Any) -> None:
    """Die when an actor has answered that it leaves, and still runs."""
    controller._actors.kill = die


def before_the_note(controller: Any) -> None:
    """Die when an actor has left, and the store does not know of it yet."""
    controller._plane.passivation._note = die


def _subscription(dispatcher: Any) -> Any:
    (subscription,) = dispatcher._server.subscriptions.served.values()
    return subscription


def _nothing() -> None:
    pass


Installer = Callable[[Any], None]
