"""From nothing to the first message, and what each actor's start costs, against bare Ray and bare actors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row

ROUNDS = 3
PARTITIONS = 4
MANY_PARTITIONS = 16
ACTOR_ROUNDS = 6


def run(env: Environment) -> list[Row]:
    """Ours and the floor take turns; imports are not counted on either side."""
    times: dict[str, list[float]] = {}
    for _ in range(env.count(ROUNDS)):
        with env.directory() as path:
            for script in (_OURS, _FLOOR):
                for name, seconds in _run(script, path).items():
                    times.setdefault(name, []).append(seconds)
    middle = {name: p50(values) for name, values in times.items()}
    return [
        Row(
            "embedded Client() to the first message received on a new topic",
            f"{middle['first']:.2f} s",
            f"bare Ray, connecting, 3 bare actors one after the other {middle['bare']:.2f} s",
            middle["first"] / middle["bare"],
            1.5,
            at_most=True,
        ),
        Row(
            f"new topic of {PARTITIONS} partitions, one subscription, first message received",
            f"{middle['partitioned']:.2f} s",
            f"its {2 * PARTITIONS} actors bare, in parallel {middle['parallel']:.2f} s",
            middle["partitioned"] / middle["parallel"],
            1.5,
            at_most=True,
        ),
        *_actors(env),
    ]


def _actors(env: Environment) -> list[Row]:
    """Measure how long actors take to start, by turns with as many bare ones."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with env.broker() as broker:
        client = broker.client
        client.subscribe(broker.topic(), "sub").close()
        for _ in range(env.count(ACTOR_ROUNDS)):
            seconds, cpu = _bare(2)
            note("two bare", seconds)
            note("bare cpu", sum(cpu) / 2)
            topic = broker.topic()
            began = time.perf_counter()
            consumer = client.subscribe(topic, "sub")
            note("topic", time.perf_counter() - began)
            for kind, pid in broker.pids(topic, "sub").items():
                note(f"{kind} cpu", _cpu(pid))
            consumer.close()
        for _ in range(env.count(ROUNDS)):
            note("many bare", _bare(MANY_PARTITIONS)[0])
            note("many", _many(broker))
    middle = {name: p50(values) for name, values in found.items()}
    bare = middle["bare cpu"]
    return [
        *(
            Row(
                f"a {kind}'s process until it serves: CPU",
                f"{middle[f'{kind} cpu']:.2f} s",
                f"a bare actor's {bare:.2f} s",
                middle[f"{kind} cpu"] / bare,
                1.45,
                at_most=True,
            )
            for kind in ("partition", "dispatcher")
        ),
        Row(
            "new topic with a subscription, on a broker that runs",
            f"{middle['topic']:.2f} s",
            f"two bare actors at once {middle['two bare']:.2f} s",
            middle["topic"] / middle["two bare"],
            1.5,
            at_most=True,
        ),
        Row(
            f"new topic of {MANY_PARTITIONS} partitions, a message to each confirmed",
            f"{middle['many']:.2f} s",
            f"{MANY_PARTITIONS} bare actors at once {middle['many bare']:.2f} s",
            middle["many"] / middle["many bare"],
            1.5,
            at_most=True,
        ),
    ]


@ray.remote(num_cpus=0)
class _Bare:
    def pid(self) -> int:
        return os.getpid()


def _bare(count: int) -> tuple[float, list[float]]:
    """Seconds until so many bare actors answer, and the CPU seconds of each; they are gone afterwards."""
    began = time.perf_counter()
    actors = [_Bare.remote() for _ in range(count)]  # type: ignore[attr-defined] # of Ray's decorator
    pids = ray.get([actor.pid.remote() for actor in actors])
    seconds = time.perf_counter() - began
    cpu = [_cpu(pid) for pid in pids]
    for actor in actors:
        ray.kill(actor)
    return seconds, cpu


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _many(broker: Broker) -> float:
    topic = broker.topic()
    began = time.perf_counter()
    with pulsar_ray.Admin(data_dir=broker.directory / "data") as admin:
        admin.topics.create_partitioned_topic(topic, MANY_PARTITIONS)
    producer = broker.client.create_producer(
        topic,
        batching_enabled=False,
        message_routing_mode=pulsar_ray.PartitionsRoutingMode.RoundRobinDistribution,
    )
    for _ in range(MANY_PARTITIONS):
        producer.send(b"x")
    seconds = time.perf_counter() - began
    producer.close()
    return seconds


def _run(script: str, directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", script, str(directory / "data"), str(PARTITIONS)]
    # Bare Ray would make up a token that the second process does not have.
    environ = os.environ | ({"RAY_AUTH_MODE": "disabled"} if script is _FLOOR else {})
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300, env=environ)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


_OURS = """
import json, sys, time
import ray, pulsar_ray
from pulsar_ray import Admin, Client
began = time.perf_counter()
client = Client("local", data_dir=sys.argv[1])
consumer = client.subscribe("first", "sub")
producer = client.create_producer("first")
producer.send(b"x")
consumer.acknowledge(consumer.receive())
first = time.perf_counter() - began
admin = Admin(data_dir=sys.argv[1])
began = time.perf_counter()
admin.topics.create_partitioned_topic("many", int(sys.argv[2]))
consumer = client.subscribe("many", "sub")
producer = client.create_producer("many")
producer.send(b"x")
consumer.acknowledge(consumer.receive())
many = time.perf_counter() - began
client.close()
admin.close()
print(json.dumps({"first": first, "partitioned": many}))
"""

_BARE_RAY = """
import logging, sys, ray
context = ray.init(address="local", include_dashboard=True, dashboard_host="127.0.0.1", log_to_driver=False,
                   logging_level=logging.ERROR)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""

_FLOOR = f"""
import json, logging, subprocess, sys, time
import ray
began = time.perf_counter()
command = [sys.executable, "-c", {_BARE_RAY!r}]
bare = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
ray.init(address=bare.stdout.readline().strip(), log_to_driver=False, logging_level=logging.ERROR)
@ray.remote(num_cpus=0)
class Bare:
    def nothing(self):
        pass
kept = []
for _ in range(3):
    kept.append(Bare.remote())
    ray.get(kept[-1].nothing.remote())
one_by_one = time.perf_counter() - began
began = time.perf_counter()
kept += [Bare.remote() for _ in range(2 * int(sys.argv[2]))]
ray.get([actor.nothing.remote() for actor in kept])
parallel = time.perf_counter() - began
bare.stdin.close()
ray.shutdown()
bare.wait()
print(json.dumps({{"bare": one_by_one, "parallel": parallel}}))
"""
