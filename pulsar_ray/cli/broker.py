"""`pulsar-ray standalone`, `start`, `status` and `stop`: a broker's life."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from pulsar_ray.actors.connect import join_ray
from pulsar_ray.actors.embedded import read_record, stop_embedded
from pulsar_ray.actors.start import start_broker, stop_broker
from pulsar_ray.cli.console import INTERRUPTED, say
from pulsar_ray.cli.standalone import serve
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, DataDirectoryInUse
from pulsar_ray.transport.ray_cluster import RayCluster

NO_RAY = (
    "no Ray cluster runs on this machine: start one with `ray start --head`, or use `pulsar-ray standalone`"
)


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where it keeps everything.")
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="End when nobody has used it for so long; 0: never.",
)
@pass_target
def standalone(target: Target, data_dir: str | None, idle_seconds: float) -> None:
    """Run an embedded broker in the foreground, with a Ray of its own.

    Clients on this machine find it by its data directory: Client("local", data_dir=...), or Client() if no
    other Ray runs here. Ctrl-C makes everything durable and ends it.

    \b
    Example:
      pulsar-ray standalone --data-dir ./data
    """
    settings = _settings(target, data_dir)
    record = read_record(Path(settings.data_dir))
    if record is not None:
        raise DataDirectoryInUse(
            f"a broker serves {settings.data_dir} already, process {record.pid}: use it, or stop it with "
            "`pulsar-ray stop`"
        )
    say(f"starting a broker on {settings.data_dir} ...")

    def ready(address: str, dashboard_url: str) -> None:
        for line in _how_to_connect(settings.data_dir, address, dashboard_url):
            click.echo(line)

    number = serve(settings, idle_seconds=idle_seconds, on_ready=ready)
    say(f"ended; everything is in {settings.data_dir}")
    if number == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)


def _settings(target: Target, data_dir: str | None) -> Settings:
    return Settings.load(data_dir=data_dir or target.data_dir)


def _how_to_connect(data_dir: str, address: str, dashboard_url: str) -> list[str]:
    return [
        f"stores in      {data_dir}",
        f'Python         pulsar_ray.Client("local", data_dir={data_dir!r})',
        f"command line   pulsar-ray --service-url local --data-dir {data_dir} ...",
        f"Ray            {address}",
        f"dashboard      {dashboard_url}",
    ]


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where every node keeps its part.")
@pass_target
def start(target: Target, data_dir: str | None) -> None:
    """Start the broker on the Ray cluster that runs here.

    Run it on the head node, once `ray start --head` has run; it returns as soon as the broker serves.
    """
    settings = _settings(target, data_dir)
    if target.service_url == "local" or not join_ray(target.service_url):
        raise ConnectError(NO_RAY)
    was_running = RayCluster().describe_broker() is not None
    described = start_broker(settings)
    if was_running and described["data_dir"] != settings.data_dir and (data_dir or target.data_dir):
        raise DataDirectoryInUse(
            f"the broker of this Ray cluster runs already and stores in {described['data_dir']}: stop it "
            "first, or leave --data-dir out"
        )
    click.echo(
        f"the broker {'runs already' if was_running else 'runs'} and stores in {described['data_dir']}"
    )
    click.echo("connect with pulsar_ray.Client() on any node of the cluster")


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Of the embedded broker that is meant.")
@pass_target
def status(target: Target, data_dir: str | None) -> None:
    """Say whether a broker runs here, and where it stores.

    Looks at the Ray cluster that runs here, else at the embedded broker of the data directory. Starts
    nothing; exits with 1 if there is none.
    """
    described: dict[str, Any] | None = None
    if target.service_url != "local" and join_ray(target.service_url):
        described = RayCluster().describe_broker()
    if described is not None:
        click.echo(f"a broker runs on this Ray cluster, controller process {described['pid']}")
        click.echo(f"stores in      {described['data_dir']}")
        return
    settings = _settings(target, data_dir)
    record = read_record(Path(settings.data_dir))
    if record is None:
        raise ConnectError(f"no broker runs here, and none serves {settings.data_dir}")
    click.echo(f"an embedded broker runs, process {record.pid}")
    for line in _how_to_connect(settings.data_dir, record.address, record.dashboard_url):
        click.echo(line)


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Of the embedded broker that is meant.")
@pass_target
def stop(target: Target, data_dir: str | None) -> None:
    """Make everything durable and end the broker; the Ray cluster goes on.

    Stops the broker of the Ray cluster that runs here, else the embedded one of the data directory. Clients
    of the first wait, and go on when it is started again; the second takes its Ray along, and with it the
    programs that use it.
    """
    if target.service_url != "local" and join_ray(target.service_url) and stop_broker():
        click.echo("the broker of this Ray cluster has ended")
        return
    settings = _settings(target, data_dir)
    record = stop_embedded(Path(settings.data_dir))
    if record is None:
        raise ConnectError(f"no broker runs here, and none serves {settings.data_dir}: nothing to stop")
    click.echo(f"the embedded broker of {settings.data_dir} has ended")
