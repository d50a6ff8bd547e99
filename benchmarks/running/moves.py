"""Measure moves between two nodes: what publishers notice of them, and how long a drain takes beyond copying.

The nodes are namespaces of this machine, as in the tests of several nodes, and share its processors and disk.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import Environment, Skipped
from benchmarks.measuring.results import Row
from benchmarks.running.moving_load import AS_FAST_AS_IT_CAN, ONE_BY_ONE, PACED
from benchmarks.running.sleeping_logs import VALUE_BYTES, write_sleeping
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, NoNamespaces, World

MOVED_BYTES = 10**9
SLEEPING, SLEEPING_BYTES = 100, 10**7
SHIPPED_SLEEPING = 20
"""Each has to run once before it is shipped, which takes its time."""
MOST_WAIT_S = 1.0
LEAST_OF_ALONE = 0.7
MOST_OVER_COPY_S = 20.0
DEADLINE_S = 1_800.0
IDLE_S = 3
REMOTE = {"PULSAR_RAY_REMOTE_DURABILITY": "async"}


def run(env: Environment) -> list[Row]:
    """Move without and with an object store, and drain; in clusters of their own."""
    moved = int(MOVED_BYTES * min(1.0, env.scale))
    with env.directory() as directory:
        try:
            copied = _Cluster(directory / "copied", {})
        except NoNamespaces as refusal:
            raise Skipped(f"nodes need namespaces, which this machine refuses: {refusal}") from None
        with copied:
            # First: what has moved leaves its files behind for a while, and they would be copied, too.
            drained = [_drain(copied, env.count(SLEEPING, 2), "copied")]
            rows = _moves(copied, moved, "copied")
        with _Cluster(directory / "shipped", REMOTE) as shipped:
            drained.append(_drain(shipped, env.count(SHIPPED_SLEEPING, 2), "shipped"))
            rows += _moves(shipped, moved, "shipped")
    return rows + drained


class _Cluster:
    """Two nodes with a broker."""

    def __init__(self, directory: Path, remote: dict[str, str]) -> None:
        directory.mkdir()
        self._world = World(directory)
        self._remote = remote
        self.nodes: RayNodes

    def __enter__(self) -> _Cluster:
        try:
            self.nodes = RayNodes(self._world)
            start_ray(self.nodes.head, "--head", f"--port={PORT}", "--include-dashboard=false")
            settings = {"PULSAR_RAY_IDLE_ACTOR_PASSIVATION_SECONDS": str(IDLE_S), **self._remote}
            variables = [f"{name}={value}" for name, value in settings.items()]
            remote = ["--remote", f"file://{SHARED}/bucket"] if self._remote else []
            self.nodes.head.run("env", *variables, "pulsar-ray", "start", "--data-dir", DATA_DIR, *remote)
            self.nodes.add_worker()
        except BaseException:
            self._world.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._world.close()

    def ask(self, program: str, *arguments: Any) -> Any:
        """Return what a program of `moving_load` answers on the head."""
        text = "import json, sys\nfrom benchmarks.running import moving_load\n"
        text += f"answer(moving_load.{program}(*json.loads(sys.argv[1])))"
        return self.nodes.head.ask(text, json.dumps(arguments), timeout_s=DEADLINE_S)

    @property
    def disks(self) -> list[Path]:
        """The data directories, the head's first."""
        return [node.disk for node in self._world.nodes]


def _moves(cluster: _Cluster, moved_bytes: int, how: str) -> list[Row]:
    rows = []
    for way in (ONE_BY_ONE, PACED, AS_FAST_AS_IT_CAN):
        topic = f"moved-{way.split()[0]}"
        cluster.ask("fill", [topic], moved_bytes)
        found = cluster.ask("move", topic, way)
        what = f"{how}, {found['bytes'] / 1e6:,.0f} MB, published {way}"
        note = f"the move took {found['took_s']:.1f} s"
        pause_s = found["pause_s"]
        text = f"{pause_s:.2f} s"
        rows.append(Row(f"{what}: waits (s)", text, "", pause_s, MOST_WAIT_S, at_most=True, note=note))
        # One that takes all processors leaves some to copying, and is slowed down if that is not enough.
        least = None if way == AS_FAST_AS_IT_CAN else LEAST_OF_ALONE
        ours, alone = f"{found['beside']:,.0f}/s", f"{found['alone']:,.0f}/s"
        note = f"for {found['before_s']:.1f} s"
        ratio = found["beside"] / found["alone"]
        rows.append(Row(f"{what}: rate before the switch", ours, alone, ratio, least, note=note))
    return rows


def _drain(cluster: _Cluster, partitions: int, how: str) -> Row:
    """Drain a node of partitions that sleep, whose files are copied plainly before; one is read behind it."""
    topics = [f"asleep-{number}" for number in range(2 * partitions)]
    cluster.ask("create", topics)
    written = write_sleeping(cluster.disks, set(topics), SLEEPING_BYTES, int(time.time() * 1000))
    assert written == 2 * partitions, written
    if how == "shipped":
        cluster.ask("open_until_shipped", topics)
    drained = cluster.disks[1]
    began = time.monotonic()
    size = _copied(drained / "p", drained.parent / "copy")
    copy_s = time.monotonic() - began
    count = cluster.ask("partitions_on", 1)
    took_s = cluster.ask("drain", 1)
    expected = SLEEPING_BYTES // VALUE_BYTES
    assert cluster.ask("messages_in", "asleep-0") == cluster.ask("messages_in", "asleep-1") == expected
    over_s = (took_s - copy_s) * SLEEPING / count
    return Row(
        f"{how}: drain {count} sleeping partitions, {size / 1e6:,.0f} MB: beyond copying, for 100 (s)",
        f"{took_s:.1f} s",
        f"cp and fsync {copy_s:.1f} s",
        over_s,
        MOST_OVER_COPY_S,
        at_most=True,
    )


def _copied(source: Path, target: Path) -> int:
    """Copy a directory durably, and return how many bytes that were."""
    shutil.copytree(source, target)
    size = 0
    for path in target.rglob("*"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        size += os.fstat(fd).st_size
        os.close(fd)
    shutil.rmtree(target)
    return size
