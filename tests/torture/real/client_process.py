"""A client's process: some clients of a scene, each on a thread, until its stdin ends.

`python -m tests.torture.real.client_process '<json of ProcessSpec>'`. It can be killed and stopped at any
moment: what its clients were told is in their journals, and its successor goes on from these.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from tests.torture.administering import Administering
from tests.torture.clients import Consuming, Notes, Producing, Working
from tests.torture.clock import JumpingClock
from tests.torture.compacting import Compacting
from tests.torture.real.reads import READS
from tests.torture.real.resuming import go_on
from tests.torture.scenes import scene_of

CARRIERS = ("auto", "auto", "tcp", "ray")
OPERATION_S = 60
LIVES_OF_A_PROCESS = 1_000
PRODUCERS, CONSUMERS, READERS = "producers", "consumers", "reads"
CALM = "calm"


@dataclass(frozen=True)
class ProcessSpec:
    """`part` of `parts`: the consumers of a scene are divided among several processes.

    `life` counts the processes with this part, from 0 on; `seed` is the same for all of them.
    """

    address: str
    scene: str
    role: str
    part: int
    parts: int
    life: int
    seed: int
    history: str


class Threads:
    """The clients of a process."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.scene = scene_of(spec.scene)
        self._rng = random.Random(f"{spec.seed} {spec.role} {spec.part} {spec.life}")
        first_life = spec.life * LIVES_OF_A_PROCESS
        self.notes = Notes(Path(spec.history), self.scene.topic, JumpingClock(), first_life)
        self.all: list[Working] = [
            each for number, each in enumerate(self._made(first_life)) if number % spec.parts == spec.part
        ]

    def new_client(self) -> Client:
        carrier = self._rng.choice(CARRIERS)
        return Client(self.spec.address, transport=carrier, operation_timeout_seconds=OPERATION_S)

    def _made(self, first_life: int) -> list[Working]:
        spec, scene = self.spec, self.scene
        if spec.role == PRODUCERS:
            return [self._producing(number, first_life) for number in range(len(scene.producers))]
        if spec.role == READERS:
            administrators: list[Working] = [
                Administering(f"{scene.name}-admin", lambda: Admin(spec.address), *self._common(first_life))
                for _ in range(scene.is_administered)
            ]
            compacting = [
                # Strikes kill the compactor, as any actor.
                Compacting(
                    f"{scene.name}-compacting",
                    lambda: Admin(spec.address),
                    lambda _: None,
                    *self._common(first_life),
                )
                for _ in range(scene.is_compacted)
            ]
            return (
                administrators
                + compacting
                + [
                    READS[how](f"{scene.name}-{how}", scene, spec.address, *self._common(first_life))
                    for how in scene.reads_on_ray
                ]
            )
        return [
            Consuming(f"{scene.name}-{plan.subscription}{number}", plan, *self._common(first_life))
            for plan in scene.consumers
            for number in range(plan.consumers)
        ]

    def _common(self, first_life: int) -> tuple[Notes, Callable[[], Client], int, int]:
        return self.notes, self.new_client, self._rng.randrange(1 << 30), first_life

    def _producing(self, number: int, first_life: int) -> Producing:
        # What it sends under a number is the same in all its lives.
        seed = random.Random(f"{self.spec.seed} {number}").randrange(1 << 30)
        name = f"{self.scene.name}-p{number}"
        producing = Producing(
            name, self.scene.producers[number], self.notes, self.new_client, seed, first_life
        )
        go_on(producing, Path(self.spec.history))
        return producing

    def run(self) -> int:
        """Work until the end of stdin; the exit code."""
        for thread in self.all:
            thread.start()
        for line in sys.stdin:
            if line.strip() == CALM:
                for thread in self.all:
                    if isinstance(thread, Consuming):
                        thread.is_calm = True
        for thread in self.all:
            thread.stopped.set()
        for thread in self.all:
            thread.join()
        errors = [thread.error for thread in self.all if thread.error]
        print("\n".join(errors), file=sys.stderr)
        return 1 if errors else 0


def main() -> int:
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.ERROR)
    return Threads(ProcessSpec(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    sys.exit(main())
