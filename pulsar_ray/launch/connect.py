"""Finds the Ray and the broker of a service URL, and connects to them."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from pulsar_ray.closed_places import is_trusted_user
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, ForkedClient, UnsupportedVersionError
from pulsar_ray.launch.broker_token import take_token
from pulsar_ray.launch.embedded import ClientMark, EmbeddedRecord, join_embedded, read_record
from pulsar_ray.launch.listeners import Listener, split_address, takers, takers_on_loopback
from pulsar_ray.launch.noted_cluster import environment_cluster, note_file, noted_cluster
from pulsar_ray.launch.rays.cluster_stay import CLUSTER_STAYS
from pulsar_ray.launch.rays.joined_ray import has_auth_token, head_answers, reaching, share_auth_mode
from pulsar_ray.launch.rays.ray_output import quiet_ray_output, ray_was_joined
from pulsar_ray.launch.rays.ray_stay import STAYS
from pulsar_ray.launch.start import start_broker
from pulsar_ray.transport.cluster import Cluster
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import is_driver, node_address

PROBE_TIMEOUT_S = 5.0
HEAD_ANSWER_S = 20.0
_OWN_CODE = str(Path(__file__).parents[1]) + os.sep
PATIENCE_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
PATIENCE_S = str(10**6)
NO_REMOTE_CLIENT = (
    "Ray's remote client cannot carry lanes; run the program on a node of the cluster, or submit it with "
    "`ray job submit`"
)


_WORDS = ("allow_founding",)
"""The settings that a client gives for itself alone, whatever the broker has."""

_was_forked_on_ray = False


def _after_fork() -> None:
    global _was_forked_on_ray  # noqa: PLW0603 - a fact of the process
    _was_forked_on_ray = ray.is_initialized()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True)
class Connected:
    """A cluster with a running broker.

    `address` finds it again from another process of the same cluster.
    """

    cluster: Cluster
    address: str
    mark: ClientMark | None = None

    def release(self) -> None:
        """Leave the cluster for this client; Ray stays connected for others of this process."""
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

    Raises ConnectError, InvalidConfiguration, ForkedClient, or what is wrong with the data directory.
    """
    if _was_forked_on_ray:
        raise ForkedClient("the process that this one was forked from is on Ray")
    keywords = dict(settings) if data_dir is None else {**settings, "data_dir": os.fspath(data_dir)}
    given = Settings.given(config_file, **keywords)
    loaded = Settings(**given)
    if service_url != "local" and join_ray(service_url):
        connected = _on_this_ray(loaded)
    else:
        STAYS.settle()
        connected = _join_embedded(loaded)
    if given and is_driver():
        _warn_of_other_settings(loaded, given, RayCluster().describe_broker() or {})
    return connected


def _warn_of_other_settings(wanted: Settings, given: Iterable[str], described: dict[str, Any]) -> None:
    """Warn of settings that differ from those of the broker that runs.

    Settings count when a broker starts, so those of a later client do nothing.
    """
    running = {**described.get("settings", {}), "data_dir": described.get("data_dir")}
    other = [
        f"{name} is {running[name]!r}, not {getattr(wanted, name)!r}"
        for name in given
        if name in running and name not in _WORDS and running[name] != getattr(wanted, name)
    ]
    if other:
        warnings.warn(
            f"the broker that runs has other settings: {'; '.join(other)}. Stop it (`pulsar-ray stop`) and "
            "connect again to change them, or leave them out",
            stacklevel=_levels_to_program(),
        )


def _levels_to_program() -> int:
    """How far up the stack the program is, whose line is to be blamed."""
    level = 1
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as warnings itself does
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        level += 1
        frame = frame.f_back
    return level


def join_ray(service_url: str) -> bool:
    """Connect this process to Ray; False if "auto" finds none running here.

    Raises ConnectError if it does not answer, or this process is on another one; ValueError for Ray's remote
    client.
    """
    _refuse_remote_client()
    STAYS.settle()
    quiet_ray_output()
    if service_url == "auto" and ray.is_initialized():
        return True
    address = service_url if service_url != "auto" else environment_cluster() or _running_ray()
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


def join_running(service_url: str, data_dir: Path, *, is_named: bool) -> bool:
    """Connect this process to the Ray of a broker that may run.

    That is the Ray cluster that runs here, else that of the directory's embedded broker; the latter first if
    it serves and the directory `is_named`. Starts nothing and keeps nobody awake; False if there is no Ray.
    Raises as `join_ray`.
    """
    record = read_record(data_dir)
    is_embedded = service_url == "local" or (is_named and record is not None)
    if not is_embedded and join_ray(service_url):
        return True
    if record is None:
        return False
    quiet_ray_output()
    join_record(record)
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
        data_dir = Path(described["data_dir"])
        with contextlib.suppress(OSError):
            mark = STAYS.begin(data_dir, record, ClientMark(data_dir), cluster)
    else:
        CLUSTER_STAYS.begin(address, lambda: _init(address), cluster)
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
            join_record(record)
    except BaseException:
        mark.release()
        raise
    cluster = RayCluster()
    kept = STAYS.begin(Path(settings.data_dir), record, mark, cluster)
    return Connected(cluster, record.address, kept)


def join_record(record: EmbeddedRecord) -> None:
    """Connect this process to the Ray of an embedded broker.

    Raises ConnectError if another user listens at its address, or nobody.
    """
    if (stranger := _stranger(record.address)) is not None:
        raise ConnectError(
            f"at {record.address}, the address of the embedded broker of process {record.pid}, a process of "
            f"user {stranger.uid} listens: stop the broker (`pulsar-ray stop`) and connect again"
        )
    if record.auth_mode:
        share_auth_mode(record.auth_mode)
    _init(record.address)


_joining = threading.Lock()
"""Held around `ray.init`, which two threads cannot call at once."""


def _init(address: str) -> None:
    with _joining:
        if ray.is_initialized():
            _check_joined(address)  # another thread may have joined meanwhile
            return
        _check_answers(address)
        take_token(address)
        _check_head(address)
        try:
            with _outliving_its_cluster(), reaching(address):
                # Without a namespace: Ray gives each program one of its own, where the names of its actors
                # are its own, and so are those of Spark's. The broker's actors are looked up in theirs.
                ray.init(
                    address=address,
                    ignore_reinit_error=True,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            if "Version mismatch" in str(error):
                raise UnsupportedVersionError(_versions(address, str(error))) from None
            raise ConnectError(f"no Ray cluster answers at {address}: {error}") from None
        ray_was_joined()
        CLUSTER_STAYS.joined()


def _versions(address: str, refusal: str) -> str:
    """Say whose versions differ, of Ray's refusal to let another version join."""
    named = re.findall(r"Ray: (\S+)\s+Python: (\S+)", refusal)
    if len(named) != 2:
        return f"the Ray cluster at {address} is of another version: {' '.join(refusal.split())}"
    (theirs, their_python), (ours, our_python) = named
    return (
        f"the Ray cluster at {address} is Ray {theirs} on Python {their_python}, and this program has "
        f"Ray {ours} on Python {our_python}: run it with the cluster's versions"
    )


@contextlib.contextmanager
def _outliving_its_cluster() -> Iterator[None]:
    """Keep Ray from ending this process a minute after losing its cluster.

    For use around `ray.init`.

    Ray reads the variable when it connects, and children are to decide for themselves.
    """
    if PATIENCE_VARIABLE in os.environ:
        yield
        return
    os.environ[PATIENCE_VARIABLE] = PATIENCE_S
    try:
        yield
    finally:
        os.environ.pop(PATIENCE_VARIABLE, None)


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


def _check_head(address: str) -> None:
    """Raise ConnectError if Ray's head at host:port does not answer in time."""
    if not head_answers(address, HEAD_ANSWER_S):
        raise ConnectError(
            f"Ray's head at {address} takes connections, and does not answer within {HEAD_ANSWER_S:g} s: "
            "look at its process `gcs_server`, which may stand still or have too much to do; `ray stop "
            "--force` there ends it"
        )


def _probe(host: str, port: str) -> Exception | None:
    """Connect for a moment; returns the error, or None if somebody listens."""
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
    """Resolve a name to its IP addresses.

    A loopback address adds this machine's own one.
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()
    if any(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        found.add(node_address())
    return found


def _running_ray() -> str:
    """The address of this machine's `ray start` cluster; "" if there is none.

    Nor if another user listens there, who would be sent this user's token.
    """
    address = noted_cluster()
    if not address or _was_left_behind(address):
        return ""
    if (stranger := _stranger(address)) is None:
        return address
    warnings.warn(
        f"{note_file()} names a Ray cluster at {address}, where a process of user {stranger.uid} listens, "
        "and not of this user: it is not used. If you trust that cluster, set RAY_ADDRESS to its address",
        stacklevel=_levels_to_program(),
    )
    return ""


def _stranger(address: str) -> Listener | None:
    """Another user's socket that gets this machine's connections to host:port, if any."""
    found = takers_on_loopback(address)
    if not found and (parts := split_address(address)) is not None:
        # Ray takes the outward address for a loopback one then, so that both count.
        found = [taker for host in _addresses(parts[0]) for taker in takers(host, parts[1])]
    return next((taker for taker in found if not is_trusted_user(taker.uid)), None)


def _was_left_behind(address: str) -> bool:
    """Whether this machine's own Ray wrote host:port and has ended.

    A Ray that is killed leaves the file.

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
