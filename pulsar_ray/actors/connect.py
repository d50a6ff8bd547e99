"""From a service URL to a cluster: which Ray, and a broker on it."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from pulsar_ray.actors.embedded import ClientMark, EmbeddedRecord, join_embedded, read_record
from pulsar_ray.actors.local_ray import has_auth_token, node_address, share_auth_mode
from pulsar_ray.actors.raylet_messages import quiet_ray_output, ray_was_joined
from pulsar_ray.actors.start import start_broker
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError
from pulsar_ray.transport.cluster import Cluster
from pulsar_ray.transport.names import NAMESPACE
from pulsar_ray.transport.ray_cluster import RayCluster

PROBE_TIMEOUT_S = 5.0
NO_REMOTE_CLIENT = (
    "Ray's remote client cannot carry lanes; run the program on a node of the cluster, or submit it with "
    "`ray job submit`"
)


@dataclass(slots=True)
class Connected:
    """A cluster with a running broker. `address` finds it again from another process of the same cluster."""

    cluster: Cluster
    address: str
    mark: ClientMark | None = None

    def release(self) -> None:
        """This client needs it no more; Ray stays connected for the others of this process."""
        if self.mark is not None:
            self.mark.release()


def connect(
    service_url: str,
    *,
    data_dir: str | os.PathLike[str] | None,
    config_file: str | os.PathLike[str] | None,
    settings: dict[str, Any],
) -> Connected:
    """Connect as `Client` describes.

    Raises ConnectError, InvalidConfiguration, or what is wrong with the data directory.
    """
    given = dict(settings) if data_dir is None else {**settings, "data_dir": os.fspath(data_dir)}
    loaded = Settings.load(config_file, **given)
    if service_url != "local" and join_ray(service_url):
        return _on_this_ray(loaded)
    return _join_embedded(loaded)


def join_ray(service_url: str) -> bool:
    """Connect this process to the Ray that is meant; False if "auto" finds none running here.

    Raises ConnectError if it does not answer, or this process is on another one; ValueError for Ray's remote
    client.
    """
    _refuse_remote_client()
    quiet_ray_output()
    if service_url == "auto" and ray.is_initialized():
        return True
    address = service_url if service_url != "auto" else os.environ.get("RAY_ADDRESS") or _running_ray()
    if not address:
        return False
    if address.startswith("ray://"):
        raise ValueError(f"RAY_ADDRESS is {address}: {NO_REMOTE_CLIENT}")
    if ray.is_initialized():
        _check_joined(address)
    elif has_auth_token() and "RAY_AUTH_MODE" not in os.environ:
        # As ray.init("auto") does: `ray start` took the token, if there was one.
        share_auth_mode("token")
    _init(address)
    return True


def _refuse_remote_client() -> None:
    ray_client: Any = ray.util.client.ray
    if ray_client.is_connected():
        raise ValueError(f"this process is connected to Ray by ray://: {NO_REMOTE_CLIENT}")


def _on_this_ray(settings: Settings) -> Connected:
    """The broker of the Ray this process is connected to, started if none runs."""
    cluster = RayCluster()
    described = cluster.describe_broker()
    if described is None:
        described = start_broker(settings)
    address = ray.get_runtime_context().gcs_address
    record = read_record(Path(described["data_dir"]))
    mark = None
    if record is not None and record.address == address:
        with contextlib.suppress(OSError):
            mark = ClientMark(Path(described["data_dir"]))
    return Connected(cluster, address, mark)


def _join_embedded(settings: Settings) -> Connected:
    quiet_ray_output()
    record, mark = join_embedded(settings)
    try:
        if ray.is_initialized():
            if ray.get_runtime_context().gcs_address != record.address:
                raise ConnectError(
                    "this process is connected to another Ray cluster already; use Client('auto') for its "
                    "broker, or ray.shutdown()"
                )
        else:
            _join(record)
    except BaseException:
        mark.release()
        raise
    return Connected(RayCluster(), record.address, mark)


def _join(record: EmbeddedRecord) -> None:
    if record.auth_mode:
        share_auth_mode(record.auth_mode)
    _init(record.address)


def _init(address: str) -> None:
    _check_answers(address)
    is_joined = ray.is_initialized()
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            ignore_reinit_error=True,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConnectError(f"no Ray cluster answers at {address}: {error}") from None
    if not is_joined:
        ray_was_joined()


def _check_answers(address: str) -> None:
    """Raise ConnectError if nobody listens at host:port; Ray would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    if ray.is_initialized() or not port.isdigit():
        return
    if (error := _probe(host, port)) is not None:
        raise ConnectError(
            f"no Ray cluster answers at {address} ({error}): give the address that `ray start` printed, or "
            '"local" for an embedded broker'
        )


def _probe(host: str, port: str) -> Exception | None:
    """What a connection there meets; None if somebody listens."""
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        return error
    return None


def _check_joined(address: str) -> None:
    """Raise ConnectError if this process is on another Ray than that at host:port."""
    joined = ray.get_runtime_context().gcs_address
    if address == joined:  # as for every handle that was pickled into a task: no name is looked up
        return
    host, _, port = address.rpartition(":")
    joined_host, _, joined_port = joined.rpartition(":")
    if not port.isdigit() or (port == joined_port and _addresses(host) & _addresses(joined_host)):
        return
    raise ConnectError(
        f"this process is connected to the Ray cluster at {joined} already, not to that at {address}: use "
        'Client("auto") for the broker there, or ray.shutdown() first'
    )


def _addresses(host: str) -> set[str]:
    """The IP addresses a name stands for; this machine's own one as well, if it is a loopback address."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()
    if any(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        found.add(node_address())
    return found


def _running_ray() -> str:
    """The address of a Ray cluster that `ray start` began on this machine, "" if there is none."""
    # Where Ray itself looks.
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    try:
        address = (Path(directory) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""
    return "" if _was_left_behind(address) else address


def _was_left_behind(address: str) -> bool:
    """Whether this machine's own Ray wrote host:port and has ended: one that is killed leaves the file.

    A head elsewhere that does not answer is a fault that somebody has to be told of.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return False
    is_refused = isinstance(_probe(host, port), ConnectionRefusedError)
    return is_refused and _is_of_this_machine(host.strip("[]"))


def _is_of_this_machine(host: str) -> bool:
    """Only own addresses can be bound to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
