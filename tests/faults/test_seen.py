"""Whoever watches sees what goes wrong within ten seconds: in metrics, health, `top` and log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_ray import ConsumerType
from pulsar_ray.admin import Admin
from pulsar_ray.broker.serving.logs.node_log import NODE_LOG
from pulsar_ray.errors import PulsarException
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import Metric
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.this_ray import session_directory
from tests.metric_scrape import Scrape
from tests.running_broker import Broker, partition_actor
from tests.unit.cli.watching.top.terminal_screen import TerminalScreen, running

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SEEN_WITHIN_S = 10.0
START_S = 120.0
SPARE_BYTES = 1 << 30


def _seen_within_s() -> float:
    """Ten seconds, or as long as they last where more processes want to run than there are CPUs."""
    return SEEN_WITHIN_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
    if free < 4 * SPARE_BYTES:
        pytest.skip(f"{directory} has no {4 * SPARE_BYTES:,} bytes to fill")
    with pytest.MonkeyPatch.context() as patch:
        # Ray's own default is ten seconds, after which nothing can be seen within ten.
        patch.setenv("RAY_metrics_report_interval_ms", "1000")
        started = Broker(
            directory,
            metrics_interval_seconds=1.0,
            stuck_subscription_warning_seconds=2.0,
            disk_low_water_mark_bytes=free - SPARE_BYTES,
            disk_warning_percent=0,
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def screen(broker: Broker) -> Iterator[TerminalScreen]:
    """`pulsar-ray top` in a terminal that is wide enough for a column of problems."""
    program = "from pulsar_ray.cli.main import main; main()"
    url = ("--service-url", broker.address, "--data-dir", str(broker.data_dir))
    command = [sys.executable, "-c", program, *url, "top", "--interval", "1"]
    with running(command, width=200, height=30) as shown:
        shown.waits_for("topics ", START_S)
        yield shown


class Watchers:
    """Looks at everything at once, and keeps when each has seen it."""

    def __init__(self, broker: Broker, screen: TerminalScreen) -> None:
        self._admin = Admin(broker.address)
        self._screen = screen
        self._log = session_directory() / "logs" / NODE_LOG
        self._log_before = len(self._log_text())

    def _log_text(self) -> str:
        files = [self._log, *self._log.parent.glob(f"{NODE_LOG}.*")]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def metric(self, metric: Metric, **labels: str) -> bool:
        """Whether a series with these labels among its own is above 0."""
        wanted = set(labels.items())
        series = Scrape().series
        found = {**series.get(metric.query_name, {}), **series.get(f"{metric.query_name}_total", {})}
        return any(value > 0 and wanted <= set(key) for key, value in found.items())

    def health(self, text: str) -> bool:
        """Whether a finding of health has a text."""
        return any(text in finding.text() for finding in self._admin.health().findings)

    def top(self, *texts: str) -> bool:
        """Whether one line of the screen has all of these texts."""
        return any(all(text in line for text in texts) for line in self._screen.shown())

    def log(self, *texts: str) -> bool:
        """Whether one line that was written since the beginning has all of these texts."""
        lines = self._log_text()[self._log_before :].splitlines()
        return any(all(text in line for text in texts) for line in lines)

    def all_see(self, what: str, **seen: Callable[[], bool]) -> None:
        """Wait until each has seen it. Says who has not."""
        began = time.monotonic()
        after: dict[str, float] = {}

        def look() -> bool:
            for name, sees in seen.items():
                if name not in after and sees():
                    after[name] = time.monotonic() - began
            return len(after) == len(seen)

        try:
            wait_until(look, _seen_within_s(), what)
        except AssertionError as error:
            missing = ", ".join(sorted(set(seen) - set(after)))
            raise AssertionError(f"{error}: not seen by {missing}; {self._screen.text()}") from None
        finally:
            print(what, {name: f"{seconds:.1f} s" for name, seconds in after.items()})

    def close(self) -> None:
        self._admin.close()


@pytest.fixture
def watchers(broker: Broker, screen: TerminalScreen) -> Iterator[Watchers]:
    looking = Watchers(broker, screen)
    yield looking
    looking.close()


def test_a_killed_actor(broker: Broker, watchers: Watchers) -> None:
    producer = broker.client().create_producer("killed")
    producer.send(b"x")
    actor = partition_actor("killed")
    watchers.all_see("a healthy topic", top=lambda: watchers.top("killed", "running"))
    assert not watchers.metric(metrics.ACTOR_RESTARTS, kind="partition")
    assert not watchers.top("restarts")
    assert not watchers.health("killed")
    broker.kill(actor)
    watchers.all_see(
        "a killed actor",
        # First: it is over once the actor serves again, which the others see.
        health=lambda: watchers.health("killed"),
        metrics=lambda: watchers.metric(metrics.ACTOR_RESTARTS, kind="partition"),
        top=lambda: watchers.top("1 restarts"),
        log=lambda: watchers.log("killed", "after its process ended"),
    )
    producer.send(b"y")


def test_a_stuck_key(broker: Broker, watchers: Watchers) -> None:
    topic = "stuck"
    producer = broker.client().create_producer(topic)
    first = broker.client().subscribe(topic, "s", ConsumerType.KeyShared, consumer_name="holder")
    keys = [f"key-{number}" for number in range(50)]
    for key in keys:
        producer.send(b"x", partition_key=key)
    for _ in keys:
        first.receive(30_000)
    # What the first one has received and not acknowledged keeps the keys that move to the second one.
    second = broker.client().subscribe(topic, "s", ConsumerType.KeyShared, consumer_name="waiting")
    for key in keys:
        producer.send(b"y", partition_key=key)
    watchers.all_see(
        "a stuck key",
        metrics=lambda: watchers.metric(metrics.BLOCKED_HASHES, subscription="s"),
        health=lambda: watchers.health("still drains at holder"),
        top=lambda: watchers.top("stuck", "still drains at"),
        log=lambda: watchers.log("stuck", "still drains at holder"),
    )
    first.close()
    second.close()


def test_a_full_disk(broker: Broker, watchers: Watchers, tmp_path: Path) -> None:
    producer = broker.client().create_producer("full", send_timeout_millis=3000)
    producer.send(b"x")
    ballast = broker.data_dir / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * SPARE_BYTES)
    try:

        def is_refused() -> bool:
            try:
                producer.send(b"x" * 1000)
            except PulsarException:
                return True
            return False

        wait_until(is_refused, START_S, "a refusal")
        watchers.all_see(
            "a full disk",
            metrics=lambda: watchers.metric(metrics.REFUSED_PUBLISHES),
            health=lambda: watchers.health("low-water mark"),
            top=lambda: watchers.top("disk", "LOW") and watchers.top("full", "nothing is stored"),
            log=lambda: watchers.log("low-water mark"),
        )
    finally:
        ballast.unlink()
    wait_until(lambda: not is_refused(), START_S, "room again")
