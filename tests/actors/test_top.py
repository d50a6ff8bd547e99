"""`pulsar-ray top` on a real broker, in a pseudo-terminal."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_ray import ConsumerType, InitialPosition
from pulsar_ray.admin import Admin
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.this_ray import running_names
from tests.running_broker import Broker, partition_actor
from tests.unit.cli.watching.top.terminal_screen import TerminalScreen, running

DEADLINE_S = 60.0
_tries = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(
        tmp_path_factory.mktemp("broker"), metrics_interval_seconds=0.5, idle_actor_passivation_seconds=1.0
    )
    yield started
    started.close()


def _command(broker: Broker, *arguments: str) -> list[str]:
    program = "from pulsar_ray.cli.main import main; main()"
    url = ("--service-url", broker.address, "--data-dir", str(broker.data_dir))
    return [sys.executable, "-c", program, *url, "top", *arguments]


def _row(admin: Admin, topic: str) -> dict[str, Any]:
    """The topic's row, once its store knows it."""

    def look() -> dict[str, Any] | None:
        rows: list[dict[str, Any]] = admin.overview(topics=[topic])["topics"]
        return rows[0] if rows else None

    found = wait_until(look, DEADLINE_S, f"{topic} in the overview")
    assert found is not None
    return found


def _line_of(screen: TerminalScreen, name: str) -> str:
    return next((line for line in screen.shown() if line.startswith(name)), "")


@pytest.mark.long
def test_topics_are_watched_while_one_sleeps_and_another_is_killed(broker: Broker) -> None:
    client = broker.client()
    number = next(_tries)
    busy, quiet = f"top{number}-busy", f"top{number}-asleep"
    with Admin(broker.address) as admin:
        sleeper = client.create_producer(quiet)
        admin.topics.create_subscription(quiet, "later")
        for _ in range(3):
            sleeper.send(b"x")
        sleeper.close()
        asleep = partition_actor(quiet)
        wait_until(lambda: asleep not in running_names(), DEADLINE_S, "its sleep")

        consumer = client.subscribe(busy, "s", ConsumerType.Shared, consumer_name="reader")
        # One with a name of its own keeps its partition awake.
        producer = client.create_producer(busy, "p")
        for _ in range(5):
            producer.send(b"x")
        messages = [consumer.receive(30_000) for _ in range(5)]
        consumer.acknowledge(messages[0])

        def has_all_figures() -> bool:
            # They come with the reports of two actors.
            row = _row(admin, busy)
            return (row["unackedMessages"], row["msgBacklog"], row["consumers"], row["producers"]) == (
                4,
                4,
                1,
                1,
            )

        wait_until(has_all_figures, DEADLINE_S, "the figures")
        row = _row(admin, busy)
        assert row["state"] == "running"
        assert row["subscriptions"]["s"]["oldestAgeSeconds"] >= 0
        row = _row(admin, quiet)
        assert (row["state"], row["msgBacklog"], row["subscriptionCount"]) == ("asleep", 3, 1)
        with pytest.raises(InvalidConfiguration, match="sort"):
            admin.overview(sort="nothing")
        with pytest.raises(InvalidConfiguration, match="limit"):
            admin.overview(limit=0)

        with running(_command(broker, "--interval", "0.5", "--filter", f"top{number}-")) as screen:
            screen.waits_for(busy, DEADLINE_S)
            assert _line_of(screen, quiet).split()[3] == "3", "its backlog"
            assert "asleep" in _line_of(screen, quiet)
            # The largest backlog is selected.
            screen.press("\r")
            screen.waits_for("reader" if "reader" in screen.text() else "Shared", DEADLINE_S)
            screen.press("\r")
            screen.waits_for("-> s  everything was delivered", DEADLINE_S)
            assert _line_of(screen, "reader").split()[2] == "4", "what it holds"
            screen.press("\x1b\x1b")
            screen.waits_for(f"filter: top{number}-", DEADLINE_S)
            broker.kill(partition_actor(busy))
            screen.waits_for("1 restarts", DEADLINE_S)
            wait_until(lambda: "running" in _line_of(screen, busy), DEADLINE_S, "it is back")
            screen.press("q")
            screen.ends_with(0, DEADLINE_S)
    assert asleep not in running_names(), "looking wakes nobody"


@pytest.mark.long
def test_scripts_get_one_document(broker: Broker) -> None:
    topic = f"top{next(_tries)}-json"
    with Admin(broker.address) as admin:
        admin.topics.create_topic(topic)
    producer = broker.client().create_producer(topic)
    consumer = broker.client().subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    producer.send(b"x")
    with Admin(broker.address) as admin:
        wait_until(lambda: _row(admin, topic)["subscriptionCount"] == 1, DEADLINE_S, "the figures")
    done = subprocess.run(
        _command(broker, topic, "-s", "s", "--json"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert f"persistent://public/default/{topic}" in [row["name"] for row in found["overview"]["topics"]]
    assert [one["name"] for one in found["subscriptions"]] == ["s"]
    assert [one["consumerName"] for one in found["consumers"]] == [consumer.consumer_name()]
    missing = subprocess.run(
        _command(broker, "top-nowhere", "--once"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert missing.returncode == 1
    assert "does not exist" in missing.stderr
