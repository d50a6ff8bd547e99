"""`pulsar-ray standalone`, `start`, `status`, `stop` and `init-store`: a broker's life."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.cli.console import INTERRUPTED, say, write_line
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.standalone import serve
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import ShownProgress, progress
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, DataDirectoryInUse, NotAllowedError, WrongNode
from pulsar_ray.gateway.gateway_actor import start_gateway
from pulsar_ray.journal.store_journal import check_remote
from pulsar_ray.launch.broker_token import token_file
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.launch.embedded import EmbeddedRecord, read_record, stop_embedded
from pulsar_ray.launch.embedded import take_over as take_over_store
from pulsar_ray.launch.lost_catalog import asked_controller
from pulsar_ray.launch.start import start_broker, stop_broker
from pulsar_ray.managed_ledger.store import known_stores
from pulsar_ray.managed_ledger.store.store_directory import is_mount
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.retry import until

NO_RAY = (
    "no Ray cluster runs on this machine: start one with `ray start --head`, or use `pulsar-ray standalone`"
)

LOOK_FOR_RAY_S = 1.0

NO_DASHBOARD = "none; the setting embedded_dashboard starts one"

STORES_AWAY = 3
"""Exit code of `status` and `wait` if a store does not work.

The broker itself runs then.
"""

_rebuild = click.option(
    "--rebuild-catalog",
    is_flag=True,
    help="Make a lost catalog of topics anew from what the stores hold, or complete the one that is there. "
    "Bring up all nodes with stores before.",
)


_http = click.option(
    "--http",
    metavar="[HOST:]PORT",
    help="Serve HTTP there, on 127.0.0.1 unless a host is given; 0 is any free port.",
)


def _tls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take the files of TLS for HTTP."""
    for option, text in (
        ("--tls-client-ca", "Who signs certificates of clients, whose common names are their roles."),
        ("--tls-key", "The key of --tls-cert, in PEM."),
        ("--tls-cert", "Serve HTTPS with this certificate, in PEM."),
    ):
        function = click.option(option, type=click.Path(dir_okay=False), help=text)(function)
    return function


_remote = click.option(
    "--remote",
    metavar="URL",
    help="Object store that has a journal of what is stored: s3://bucket/prefix, gs://, az://, file:///shared.",
)
_from = click.option(
    "--from",
    "from_url",
    metavar="URL",
    help="Bring back what a broker shipped there, into an empty data directory, and go on with it.",
)
_accept_loss = click.option(
    "--accept-loss", is_flag=True, help="With --from: leave out partitions whose objects are missing."
)


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where it keeps everything.")
@click.option(
    "--idle-seconds",
    type=FiniteRange(min=0),
    default=0,
    show_default=True,
    help="End when nobody has used it for so long; 0: never.",
)
@_rebuild
@click.option(
    "--take-over",
    is_flag=True,
    help="Serve a store of a Ray cluster that is no more, alone and from now on. With --from: also if "
    "somebody ships there.",
)
@_http
@_tls
@_remote
@_from
@_accept_loss
@pass_target
def standalone(
    target: Target,
    /,
    data_dir: str | None,
    idle_seconds: float,
    rebuild_catalog: bool,
    take_over: bool,
    accept_loss: bool,
    http: str | None,
    remote: str | None,
    from_url: str | None,
    **tls: str | None,
) -> None:
    """Run an embedded broker in the foreground, with a Ray of its own.

    Clients on this machine find it by its data directory: Client("local", data_dir=...), or Client() if no
    other Ray runs here. Ctrl-C makes everything durable and ends it.

    \b
    Example:
      pulsar-ray standalone --data-dir ./data
    """
    settings = _settings(target, data_dir, http, from_url or remote, **tls)
    record = read_record(Path(settings.data_dir))
    if record is not None:
        raise DataDirectoryInUse(
            f"a broker serves {settings.data_dir} already, process {record.pid}: use it, or stop it with "
            "`pulsar-ray stop`"
        )
    if from_url is not None:
        _restore(settings, takes_over=take_over, accepts_loss=accept_loss)
    elif take_over:
        take_over_store(Path(settings.data_dir))
    say(f"starting a broker on {settings.data_dir} ...")

    def ready(shown: ShownProgress, record: EmbeddedRecord, http_url: str) -> None:
        shown.end()
        for line in _how_to_connect(settings.data_dir, record):
            write_line(line)
        if http_url:
            write_line(f"HTTP           {http_url}")

    word = StartPermission(may_found=True, may_rebuild=rebuild_catalog or from_url is not None)
    with progress("starting Ray and the broker") as shown:
        number = serve(settings, word, idle_seconds=idle_seconds, on_ready=partial(ready, shown))
    say(f"ended; everything is in {settings.data_dir}")
    if number == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)


def _settings(
    target: Target,
    data_dir: str | None,
    http: str | None = None,
    remote: str | None = None,
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_client_ca: str | None = None,
) -> Settings:
    if remote is not None and (problem := check_remote(remote)):
        say(f"warning: {remote} does not answer, and nothing is shipped until it does: {problem}")
    return Settings.load(
        data_dir=data_dir or target.data_dir,
        http_listen=http,
        remote_url=remote,
        tls_certificate_file_path=tls_cert,
        tls_key_file_path=tls_key,
        tls_trust_certs_file_path=tls_client_ca,
    )


def _restore(settings: Settings, *, takes_over: bool, accepts_loss: bool) -> None:
    # Only a broker that is brought back needs this.
    from pulsar_ray.maintenance.remote_restore import restore_from  # noqa: PLC0415

    say(f"bringing back what was shipped to {settings.remote_url} ...")
    came = restore_from(
        settings.remote_url,
        Path(settings.data_dir).expanduser(),
        takes_over=takes_over,
        accepts_loss=accepts_loss,
        note=say,
    )
    say(f"{came.partitions} partitions of {came.stores} stores are back")


def _how_to_connect(data_dir: str, record: EmbeddedRecord) -> list[str]:
    lines = [
        f"stores in      {data_dir}",
        f'Python         pulsar_ray.Client("local", data_dir={data_dir!r})',
        f"command line   pulsar-ray --service-url local --data-dir {data_dir} ...",
        f"Ray            {record.address}",
        f"dashboard      {record.dashboard_url or NO_DASHBOARD}",
    ]
    if (token := token_file(record.address)) is not None:
        lines.append(f"token          {token}")
    return [*lines, f"warning        {record.open_to}"] if record.open_to else lines


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where every node keeps its part.")
@_rebuild
@click.option(
    "--expect-stores",
    type=click.IntRange(min=0),
    help="How many stores the cluster is to have, kept from now on: `health` and `wait` miss the others. "
    "0: no word about that.",
)
@click.option(
    "--wait-for-ray",
    type=FiniteRange(min=0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="How long Ray may take to come up first, as when both start at boot.",
)
@_http
@_tls
@_remote
@_from
@_accept_loss
@click.option("--take-over", is_flag=True, help="With --from: also if somebody ships there.")
@pass_target
def start(
    target: Target,
    /,
    data_dir: str | None,
    rebuild_catalog: bool,
    expect_stores: int | None,
    wait_for_ray: float,
    http: str | None,
    remote: str | None,
    from_url: str | None,
    take_over: bool,
    accept_loss: bool,
    **tls: str | None,
) -> None:
    """Start the broker on the Ray cluster that runs here.

    Run it on the head node, once `ray start --head` has run; it returns as soon as the broker serves, and
    does not wait for stores of nodes that start later: `pulsar-ray wait` does. If the data directories of all
    nodes are empty it begins a new broker, with a store on each of them and its catalog on the head node;
    nodes that join later are taken in after `pulsar-ray init-store`.
    """
    settings = _settings(target, data_dir, http, from_url or remote, **tls)
    with progress("waiting for Ray"):
        _join_ray(target.service_url, wait_for_ray)
    with progress("starting the broker"):
        described = RayCluster().describe_broker()
        was_running = described is not None
        if described is None:
            if from_url is not None:
                _restore(settings, takes_over=take_over, accepts_loss=accept_loss)
            word = StartPermission(may_found=True, may_rebuild=rebuild_catalog or from_url is not None)
            described = start_broker(settings, word)
    if was_running and from_url is not None:
        raise NotAllowedError("the broker runs: stop it before another one is brought back in its place")
    if was_running and rebuild_catalog:
        raise NotAllowedError(
            "the broker runs: stop it with `pulsar-ray stop` before its catalog is made anew"
        )
    if was_running and described["data_dir"] != settings.data_dir and (data_dir or target.data_dir):
        raise DataDirectoryInUse(
            f"the broker of this Ray cluster runs already and stores in {described['data_dir']}: stop it "
            "first, or leave --data-dir out"
        )
    if expect_stores is not None:
        RayCluster().controller("expect_stores", expect_stores)
    write_line(
        f"the broker {'runs already' if was_running else 'runs'} and stores in {described['data_dir']}"
    )
    write_line(f"the catalog of topics is on {described['catalog_host']}")
    write_line("connect with pulsar_ray.Client() on any node of the cluster")
    if settings.http_address():
        write_line(f"HTTP is served at {start_gateway(settings)}")
    if not _report_stores(described):
        say("`pulsar-ray wait` waits until all stores serve")


def _join_ray(service_url: str, wait_s: float) -> None:
    """Join the Ray that runs here, or comes up within the time. Raises ConnectError."""
    if service_url == "local":
        raise ConnectError(NO_RAY)

    def join(_left_s: float) -> None:
        # Refused is also what a Ray's address leads to that a former boot has left behind.
        if not join_ray(service_url):
            raise ConnectError(NO_RAY)

    until(wait_s, join, again=(ConnectError,), first_pause_s=LOOK_FOR_RAY_S)


def _report_stores(described: dict[str, Any]) -> bool:
    """Print which stores do not work, and which partitions are not served.

    False if a store is missing that was there.
    """
    lost = [store for store in described["refused_stores"] if store["is_lost"]]
    away = described["away_stores"]
    for store in lost:
        say(f"no store works on {store['host']}, in {store['path']}: {store['reason']}")
    for store in away:
        say(
            f"store {store['store_id']} with {store['partitions']} partitions is on no running node; it was "
            f"on {store['host']} in {store['path']}"
        )
    for store in described["refused_stores"]:
        if not store["is_lost"]:
            say(f"{store['host']} has no store: {store['reason']}")
    for unknown in described["unknown_partitions"]:
        taken = "whose name another topic has" if unknown["name_is_taken"] else "which the catalog lacks"
        say(
            f"{unknown['directory']} on {unknown['host']} holds {unknown['topic']}, {taken}: it is not served"
        )
    return not (lost or away)


@click.command("init-store")
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@click.option("--require-mount", is_flag=True, help="Refuse a directory on the file system of / .")
@click.option("--replace", is_flag=True, help="Begin another store where one was that is lost for good.")
@pass_target
def init_store(target: Target, directory: str | None, require_mount: bool, replace: bool) -> None:
    """Make a directory of this node a store, which the broker takes in.

    Run it once for each volume, when that is mounted; a directory that is a store stays as it is. DIRECTORY
    is the node's data directory, by default --data-dir. A directory that was a store and is empty now is
    refused: its disk is not mounted. With --require-mount that is found at the first time too.

    \b
    Example:
      pulsar-ray init-store /data/pulsar-ray --require-mount
    """
    path = Path(_settings(target, directory).data_dir)
    if require_mount and not is_mount(path):
        raise WrongNode(f"{path} lies on the file system of /: mount the volume that belongs there first")
    identity, is_new = known_stores.init_store(path, replace=replace)
    of_cluster = f" of cluster {identity.cluster_id}" if identity.cluster_id else ""
    write_line(f"{path} is {'now' if is_new else 'already'} store {identity.store_id}{of_cluster}")


def _means_embedded(target: Target, data_dir: str | None) -> bool:
    """Whether "local" or a running broker's directory asks for an embedded broker."""
    if target.service_url == "local":
        return True
    is_named = bool(data_dir or target.data_dir)
    return is_named and read_record(Path(_settings(target, data_dir).data_dir)) is not None


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Of the embedded broker that is meant.")
@pass_target
def status(target: Target, data_dir: str | None) -> None:
    """Show whether a broker runs here, where it stores, and its broken stores.

    Looks at the Ray cluster that runs here, else at the embedded broker of the data directory; first at the
    latter if one serves a directory that is given. Starts nothing; exits with 1 if there is none, and with 3
    if it runs and not all of its stores work.
    """
    described: dict[str, Any] | None = None
    with progress("looking for a broker"):
        if not _means_embedded(target, data_dir) and join_ray(target.service_url):
            described = asked_controller(RayCluster().describe_broker)
    if described is not None:
        write_line(f"a broker runs on this Ray cluster, controller process {described['pid']}")
        expected = described["expected_stores"]
        of_all = f" of {expected} expected ones" if expected else ""
        write_line(f"stores in      {described['data_dir']}, on {len(described['stores'])} nodes{of_all}")
        write_line(f"catalog        on {described['catalog_host']}, of cluster {described['cluster_id']}")
        if not _report_stores(described):
            raise click.exceptions.Exit(STORES_AWAY)
        return
    settings = _settings(target, data_dir)
    record = read_record(Path(settings.data_dir))
    if record is None:
        raise ConnectError(f"no broker runs here, and none serves {settings.data_dir}")
    write_line(f"an embedded broker runs, process {record.pid}")
    for line in _how_to_connect(settings.data_dir, record):
        write_line(line)


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Of the embedded broker that is meant.")
@pass_target
def stop(target: Target, data_dir: str | None) -> None:
    """Make everything durable and end the broker; the Ray cluster goes on.

    Stops the broker of the Ray cluster that runs here, else the embedded one of the data directory; the
    latter first if one serves a directory that is given. Clients of the first wait, and go on when it is
    started again; the second takes its Ray along, and programs that use it start it again with their next
    Client().
    """
    settings = _settings(target, data_dir)
    record = None
    with progress("ending the broker"):
        is_embedded = _means_embedded(target, data_dir)
        was_stopped = not is_embedded and join_ray(target.service_url) and stop_broker()
        if not was_stopped:
            record = stop_embedded(Path(settings.data_dir))
    if was_stopped:
        write_line("the broker of this Ray cluster has ended")
        return
    if record is None:
        raise ConnectError(f"no broker runs here, and none serves {settings.data_dir}: nothing to stop")
    write_line(f"the embedded broker of {settings.data_dir} has ended")
