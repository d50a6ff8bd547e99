"""Start a landing on this Ray cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

import pyarrow.fs as pafs

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.clock import SystemClock
from pulsar_ray.data.planning.plan import BoundArgument, Topics, as_bound, as_topics
from pulsar_ray.data.reading.avro_values import AvroValues
from pulsar_ray.data.reading.topic_versions import TypedTopics, typed_topics, whole_topics
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.errors import LandingInUse, PathNotShared
from pulsar_ray_spark.landing.file_writing import landing_columns
from pulsar_ray_spark.landing.folder import Folder, LocalFolder, open_folder
from pulsar_ray_spark.landing.landing import Landing
from pulsar_ray_spark.landing.landing_round import LandingIdentity
from pulsar_ray_spark.landing.ray_writing import alive_nodes, write_on_ray
from pulsar_ray_spark.landing.round_runner import RoundRunner
from pulsar_ray_spark.rounds.plan_log import NAMESPACE, PlanLog, check_name, log_topic
from pulsar_ray_spark.rounds.topic_source import TopicSource, full_names


def land(
    topics: str | Topics,
    path: str | os.PathLike[str],
    *,
    name: str,
    start: BoundArgument = "earliest",
    until: Literal["latest"] | None = None,
    interval: float = 10.0,
    columns: Sequence[str] | None = None,
    avro_schema: str | None = None,
    typed: bool = False,
    max_bytes_per_file: int = 64 << 20,
    shared: bool = False,
    filesystem: pafs.FileSystem | None = None,
    fail_on_data_loss: bool = True,
    service_url: str = "auto",
) -> Landing:
    """Write topics to a folder of parquet files, for Spark's Structured Streaming.

    `topics` is a name, a list of names or a compiled pattern; partitions and topics that come later are taken
    from their start. `path` is a local path, a URI that pyarrow knows (s3://, gs://, hdfs://), or a path on
    `filesystem`. Files have `columns` (None: all but redelivery_count), up to about `max_bytes_per_file` of
    the log each, and names of topic, partition, positions and round. With `avro_schema`, JSON text, values
    are structs in them, and the bytes of those that do not fit stand in a last column `_corrupt_record`; JSON
    values get types by `read_landing(schema=)`. With `typed` values are columns of the topics' newest schema
    when the landing starts, each read by its own version. A start with a newer schema adds its columns,
    which are null in older files; one that changes a type is refused with LandingMismatch.

    The landing runs on a thread here and writes in Ray tasks beside the data: until it is stopped, looking
    for messages every `interval` seconds, or with `until="latest"` until all that is stored now is landed.
    This returns when the folder is there for `read_landing`, and the files that a former process had begun;
    `await_termination` of the handle waits for the end.

    Each message is in one file, once, whatever dies: the positions of a round of files are durable before
    they are written, and each file appears whole, or not at all. `land` with the same `name` goes on where
    the former process was; `start` counts for a new name. The durable subscription `landing-<name>` keeps the
    messages until they are landed, and shows the backlog. `drop_landing` ends all that.

    Raises InvalidConfiguration, PathNotShared for a local path on several nodes unless it is `shared` by all
    of them, LandingInUse while another process runs the landing, LandingMismatch for other topics, columns,
    schema or path under a known name, and what the client raises. The handle raises DataLost for messages
    that were trimmed before they were landed, unless `fail_on_data_loss` is off.
    """
    check_name(name)
    wanted, columns = as_topics(topics), landing_columns(columns)
    _check_avro(avro_schema, columns)
    if typed and (avro_schema is not None or "value" not in columns):
        raise InvalidConfiguration(
            "typed=True is of values, and excludes avro_schema: name 'value' in columns"
        )
    first = as_bound(start, time.time_ns() // 1_000_000)
    _check_sizes(until, interval, max_bytes_per_file)
    folder = open_folder(path, filesystem)
    client = _connected(service_url, None if shared else folder)
    identity = LandingIdentity(name, full_names(wanted), folder.path, columns, avro_schema or "", typed)

    def open_runner(opened: ExitStack) -> RoundRunner:
        opened.enter_context(client)
        admin = opened.enter_context(Admin(service_url))
        log = opened.enter_context(open_rounds(client, admin, name))
        source = TopicSource(admin, wanted, subscription_of(name), fail_on_data_loss=fail_on_data_loss)

        def newest(topics: Sequence[str]) -> TypedTopics | None:
            return typed_topics(admin, whole_topics(topics or source.partitions(), ()))

        clock = SystemClock()
        return RoundRunner(
            identity, source, folder, log, write_on_ray, clock, max_bytes_per_file, newest if typed else None
        )

    landing = Landing(name, open_runner, first, None if until else interval)
    landing.await_begin()
    return landing


def drop_landing(name: str, topics: str | Topics, *, service_url: str = "auto") -> None:
    """Forget a landing that does not run: its subscription and its rounds; its files stay.

    Raises LandingInUse while the landing runs, and forgets nothing then, and TopicNotFound for topics that
    there are not. May be repeated.
    """
    check_name(name)
    with Client(service_url) as client, Admin(service_url) as admin:
        partitions = TopicSource(admin, as_topics(topics), subscription_of(name)).partitions()
        with ExitStack() as taken:
            has_log = log_topic(subscription_of(name)) in admin.topics.list(NAMESPACE)
            if has_log:
                taken.enter_context(open_rounds(client, admin, name))
            for partition in partitions:
                if subscription_of(name) in admin.topics.subscriptions(partition):
                    admin.topics.unsubscribe(partition, subscription_of(name))
        if has_log:
            admin.topics.delete(log_topic(subscription_of(name)))


def subscription_of(name: str) -> str:
    """The durable subscription of a landing."""
    return f"landing-{name}"


def open_rounds(client: Client, admin: Admin, name: str) -> PlanLog:
    """Take the rounds of a landing until they are closed. Raises LandingInUse."""
    topic = log_topic(subscription_of(name))
    return PlanLog(client, admin, topic, f"landing {name!r}", LandingInUse)


def _check_avro(avro_schema: str | None, columns: Sequence[str]) -> None:
    if avro_schema is None:
        return
    AvroValues(avro_schema)
    if "value" not in columns:
        raise InvalidConfiguration(
            f"columns={list(columns)} has no 'value', and avro_schema is given for values: name 'value' too, "
            "or leave avro_schema out"
        )


def _check_sizes(until: object, interval: object, max_bytes_per_file: object) -> None:
    if until not in (None, "latest"):
        raise InvalidConfiguration(f'until={until!r}: give "latest", or nothing to go on')
    if not isinstance(interval, (int, float)) or not 0 < interval <= threading.TIMEOUT_MAX:
        raise InvalidConfiguration(
            f"interval={interval!r}: give seconds, more than 0 and at most {int(threading.TIMEOUT_MAX)}"
        )
    if not isinstance(max_bytes_per_file, int) or max_bytes_per_file < 1:
        raise InvalidConfiguration(
            f"max_bytes_per_file={max_bytes_per_file!r}: give bytes, an int of at least 1"
        )


def _connected(service_url: str, unshared: Folder | None) -> Client:
    """Connect a client, and this process to Ray.

    Raises PathNotShared if a folder that is not shared would have to be.
    """
    with ExitStack() as on_error:
        client = on_error.enter_context(Client(service_url))
        client.cluster  # noqa: B018 - connects
        _check_reach(unshared)
        on_error.pop_all()
    return client


def _check_reach(folder: Folder | None) -> None:
    if isinstance(folder, LocalFolder) and (nodes := alive_nodes()) > 1:
        raise PathNotShared(
            f"{folder.path} is a path of this machine, and the cluster has {nodes} nodes: give a path that "
            "all nodes share, with shared=True, or one of an object store, as s3://bucket/folder"
        )
