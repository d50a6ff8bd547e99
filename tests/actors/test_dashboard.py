"""Every query of the dashboard gives data on a Prometheus that scrapes a broker under load."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import pulsar_ray
from pulsar_ray.launch.embedded import stop_embedded
from pulsar_ray.monitoring.dashboard import dashboard
from pulsar_ray.monitoring.installing import INSTALLED_DASHBOARD, INSTALLED_RULES
from pulsar_ray.testing.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PROMETHEUS = shutil.which("prometheus")
COMMAND_S = 150.0
# Ray's report and Prometheus' scrape come every 10 s each; rates are over a minute.
DATA_S = 120.0
RATE = "1m"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Watched:
    """A broker on a Ray of its own, and the Prometheus that Ray is told of."""

    data_dir: Path
    prometheus_url: str

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `pulsar-ray` for this broker."""
        return subprocess.run(
            [*command_line(self.data_dir), *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=True,
        )

    def query(self, expr: str) -> list[float]:
        """The values of an instant query, those left out that are none."""
        url = f"{self.prometheus_url}/api/v1/query?query={urllib.parse.quote(expr)}"
        with urllib.request.urlopen(url, timeout=COMMAND_S) as answer:
            found = json.load(answer)["data"]["result"]
        values = (float(series["value"][1]) for series in found)
        return [value for value in values if not math.isnan(value)]


def command_line(data_dir: Path) -> list[str]:
    run = "from pulsar_ray.cli.main import main; main()"
    return [sys.executable, "-c", run, "--service-url", "local", "--data-dir", str(data_dir)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not there: apt-get install prometheus")
    data_dir = tmp_path_factory.mktemp("watched") / "data"
    watched = Watched(data_dir, f"http://127.0.0.1:{free_port()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_PROMETHEUS_HOST", watched.prometheus_url)
        # It is what writes the settings for Prometheus and Grafana.
        patch.setenv("PULSAR_RAY_EMBEDDED_DASHBOARD", "1")
        patch.delenv("RAY_METRICS_OUTPUT_ROOT", raising=False)
        broker = subprocess.Popen(
            [*command_line(data_dir), "standalone"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert broker.stdout is not None
    printed = []
    for line in broker.stdout:
        printed.append(line)
        if line.startswith("dashboard"):
            break
    else:
        pytest.fail(f"standalone ended: {printed}")
    try:
        with started_prometheus(watched, tmp_path_factory.mktemp("prometheus")):
            yield watched
    finally:
        stop_embedded(data_dir)
        broker.communicate(timeout=COMMAND_S)


@contextlib.contextmanager
def started_prometheus(watched: Watched, storage: Path) -> Iterator[None]:
    """Prometheus on the settings that Ray wrote, as Ray wrote them."""
    assert PROMETHEUS is not None
    settings = session_of(watched) / "metrics" / "prometheus" / "prometheus.yml"
    wait_until(settings.is_file, COMMAND_S, "Ray's settings for Prometheus")
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={settings}",
            f"--storage.tsdb.path={storage}",
            f"--web.listen-address={watched.prometheus_url.removeprefix('http://')}",
            "--web.enable-lifecycle",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(COMMAND_S)


def session_of(watched: Watched) -> Path:
    first = watched.command("metrics", "show").stdout.splitlines()[0]
    return Path(first.split()[1])


class Load:
    """Publishes and consumes until it is ended: acknowledges most, fails some, and leaves some for dead."""

    def __init__(self, client: pulsar_ray.Client) -> None:
        self._client = client
        self._is_ended = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join(COMMAND_S)
        assert not self._thread.is_alive()

    def check(self) -> None:
        """Raise what the load failed with."""
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            self._publish_and_consume()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._errors.append(error)

    def _publish_and_consume(self) -> None:
        worker = self._client.subscribe(
            "orders",
            "workers",
            pulsar_ray.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=200,
            dead_letter_policy=pulsar_ray.ConsumerDeadLetterPolicy(max_redeliver_count=1),
        )
        self._client.subscribe("orders", "nobody").close()
        producer = self._client.create_producer("orders")
        ticks = "non-persistent://public/default/ticks"
        # Nobody takes its messages out, so that most have no room.
        self._full = self._client.subscribe(ticks, "full", receiver_queue_size=1)
        passing = self._client.create_producer(ticks)
        number = 0
        while not self._is_ended.wait(0.05):
            number += 1
            producer.send(b"order %d" % number)
            passing.send(b"tick %d" % number)
            message = worker.receive(timeout_millis=60_000)
            if number % 10 == 0:
                worker.negative_acknowledge(message)
            else:
                worker.acknowledge(message)


def expressions() -> list[tuple[str, str]]:
    """Title and expression of each query in the JSON, with everything chosen."""
    panels = [member for panel in dashboard()["panels"] for member in (panel, *panel.get("panels", ()))]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def as_chosen(expr: str) -> str:
    """The expression as Grafana sends it when everything is chosen."""
    text = expr.replace("$__rate_interval", RATE)
    for name in ("SessionName", "namespace", "topic", "subscription"):
        text = text.replace(f'"${name}"', '".*"')
    assert "$" not in text
    return text


def test_install_has_prometheus_take_the_alerts(watched: Watched) -> None:
    def said() -> str:
        return watched.command("metrics", "install").stdout

    wait_until(lambda: "has the alerts" in said(), COMMAND_S, "Prometheus to answer")
    session = session_of(watched)
    assert (session / "metrics" / "grafana" / "dashboards" / INSTALLED_DASHBOARD).exists()
    assert (session / "metrics" / "prometheus" / INSTALLED_RULES).exists()
    assert said().count("unchanged") == 3


def test_every_query_of_the_dashboard_gives_data_under_load(watched: Watched) -> None:
    client = pulsar_ray.Client("local", data_dir=str(watched.data_dir), metrics=True)
    try:
        with Load(client) as load:
            restarts = "sum(ray_pulsar_ray_actor_restarts_total)"
            dead_letters = "sum(ray_pulsar_ray_dead_lettered_messages_total)"
            published = (
                'sum(ray_pulsar_ray_messages_in_total{topic="persistent://public/default/orders"}) > 0'
            )
            wait_until(lambda: watched.query(published), DATA_S, "the broker's metrics in Prometheus")
            with pulsar_ray.Admin("local", data_dir=str(watched.data_dir)) as admin:
                psutil.Process(admin.topics.stats("orders")["pid"]).kill()
            for title, expr in expressions():

                def data(expr: str = expr) -> list[float]:
                    load.check()
                    return watched.query(as_chosen(expr))

                wait_until(data, DATA_S, f"data for {title}: {expr}")
            wait_until(lambda: watched.query(f"{restarts} > 0"), DATA_S, "the restart")
            wait_until(lambda: watched.query(f"{dead_letters} > 0"), DATA_S, "the dead letters")
    finally:
        client.shutdown()


def test_log_files_of_a_topic_are_found_those_of_former_lives_too(watched: Watched) -> None:
    lines = watched.command("logs", "orders").stdout.splitlines()
    partition = [line.split("  ") for line in lines if line.endswith("persistent://public/default/orders")]
    # It was killed once: two processes with two files each.
    assert len(partition) >= 4
    assert all(Path(parts[-2]).is_file() for parts in partition)
    assert any(line.endswith("orders -> workers") for line in lines)
    assert "Controller" in watched.command("logs").stdout
