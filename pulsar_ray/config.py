"""Every setting of the broker, its default, and where its value may come from."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pulsar_ray.compiled import PURE
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.setting_fields import (
    SettingValue,
    checked,
    default_of,
    parsed,
    pulsar_key,
    setting,
    unknown_setting,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

ENVIRONMENT_PREFIX = "PULSAR_RAY_"
CONFIG_FILE_VARIABLE = "PULSAR_RAY_CONFIG_FILE"

ENTRY_OVERHEAD_BYTES = 10 * KIB
"""How much larger than max_message_size a whole entry with its metadata may be."""
MAX_FRAME_BYTES = 8 * MIB - 64 * KIB
"""Upper bound of netty_max_frame_size_bytes.

An entry crosses a connection in one packet of at most 8 MiB.
"""

SCHEMA_COMPATIBILITY = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
REMOTE_DURABILITY = ("off", "async", "sync")
SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")

_PLACES = (
    "token_secret_key",
    "token_public_key",
    "basic_auth_conf",
    "tls_certificate_file_path",
    "tls_key_file_path",
    "tls_trust_certs_file_path",
)
_BYTES_PER_ACTIVE_ACTOR = 80 * MIB  # about 70 MB each, and room for what it reads and writes
OFF = "off"
_PORT_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?\Z", re.ASCII)
_OUTER_URL = re.compile(r"https?://([a-z0-9.-]+(?::\d{1,5})?|\[[0-9a-f:]+\](?::\d{1,5})?)", re.ASCII)
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings: Pulsar's, named in snake_case, then our own. Immutable, and valid once built."""

    max_message_size: int = setting(
        5 * MIB, "largest payload of one entry after compression, bytes", minimum=1, maximum=MAX_FRAME_BYTES
    )
    netty_max_frame_size_bytes: int = setting(
        5 * MIB + ENTRY_OVERHEAD_BYTES,
        "largest whole entry with metadata",
        minimum=1,
        maximum=MAX_FRAME_BYTES,
    )
    broker_deduplication_enabled: bool = setting(False, "store what a producer sends twice once")
    broker_deduplication_producer_inactivity_timeout_minutes: int = setting(
        360, "forget the sequence ids of a producer that has been away so long", minimum=1
    )
    broker_deduplication_max_number_of_producers: int = setting(
        10_000, "producers of a partition whose sequence ids are kept", minimum=1
    )
    acknowledgment_at_batch_index_level_enabled: bool = setting(
        False, "keep single messages of a batch acked"
    )
    subscription_key_shared_use_consistent_hashing: bool = setting(
        False, "Key_Shared by a ring, not by ranges"
    )
    subscription_key_shared_consistent_hashing_replica_points: int = setting(
        100, "points of a consumer on the ring", minimum=1, maximum=10_000
    )
    key_shared_look_ahead_msg_in_replay_threshold_per_consumer: int = setting(
        2_000, "Key_Shared reads on past so many messages that must wait; 0: no limit", minimum=0
    )
    key_shared_look_ahead_msg_in_replay_threshold_per_subscription: int = setting(
        20_000, "the same for all its consumers together; 0: no limit", minimum=0
    )
    stuck_subscription_warning_seconds: float = setting(
        30.0, "warn of a subscription that has messages and takers and stands still; 0: never", minimum=0
    )
    allow_auto_topic_creation: bool = setting(True, "create topics at their first use")
    allow_auto_topic_creation_type: str = setting(
        "non-partitioned", "kind of topics created so", choices=("non-partitioned", "partitioned")
    )
    default_num_partitions: int = setting(1, "partitions of topics created so", minimum=1, maximum=10_000)
    allow_auto_subscription_creation: bool = setting(True, "create subscriptions at their first use")
    enable_non_persistent_topics: bool = setting(True, "allow topics kept in memory only")
    system_topic_enabled: bool = setting(True, "keep system topics")
    topic_level_policies_enabled: bool = setting(True, "allow policies of single topics")
    delayed_delivery_enabled: bool = setting(True, "honour deliver_at; off: deliver at once")
    delayed_delivery_tick_time_millis: int = setting(
        1000, "delayed messages may come so much early, unless strict", minimum=1
    )
    is_delayed_delivery_deliver_at_time_strict: bool = setting(False, "deliver no delayed message early")
    delayed_delivery_max_delay_in_millis: int = setting(
        0, "refuse messages that are to be delivered later than that; 0: no limit", minimum=0
    )
    max_num_delayed_delivery_tracker_memory_entries: int = setting(
        100_000, "delayed messages a tracker keeps in memory; the rest is on disk", minimum=1
    )
    max_unacked_messages_per_consumer: int = setting(
        50_000, "stop dispatch to a consumer there; 0: no limit", minimum=0
    )
    max_unacked_messages_per_subscription: int = setting(
        200_000, "stop dispatch of a subscription there; 0: no limit", minimum=0
    )
    max_pending_acks_per_subscription: int = setting(
        1_000_000,
        "unacknowledged entries, of any type, at which a subscription gets no more; 0: no limit",
        minimum=0,
    )
    dispatcher_max_round_robin_batch_size: int = setting(
        20,
        "a Shared consumer gets at most so many messages, and a batch, above another that has room",
        minimum=1,
    )
    max_topics_per_namespace: int = setting(
        0, "a partitioned one counts its partitions; 0: no limit", minimum=0
    )
    max_producers_per_topic: int = setting(0, "of each partition; 0: no limit", minimum=0)
    max_consumers_per_topic: int = setting(0, "of each partition; 0: no limit", minimum=0)
    max_subscriptions_per_topic: int = setting(0, "of each partition; 0: no limit", minimum=0)
    max_consumers_per_subscription: int = setting(0, "of each partition; 0: no limit", minimum=0)
    max_properties_bytes: int = setting(
        16 * KIB, "names and values of one producer's, consumer's or subscription's; 0: no limit", minimum=0
    )
    max_properties_bytes_per_actor: int = setting(
        16 * MIB, "the same with their names, of all that one process keeps; 0: no limit", minimum=0
    )
    subscription_types_enabled: str = setting(
        "Exclusive,Shared,Failover,Key_Shared", "types that consumers may subscribe with"
    )
    max_publish_rate_per_topic_in_messages: int = setting(
        0, "a second, for each partition; producers are slowed down; 0: no limit", minimum=0
    )
    max_publish_rate_per_topic_in_bytes: int = setting(
        0, "a second, for each partition; producers are slowed down; 0: no limit", minimum=0
    )
    dispatch_throttling_rate_per_subscription_in_msg: int = setting(
        0, "a second, for each partition; deliveries are slowed down; 0: no limit", minimum=0
    )
    dispatch_throttling_rate_per_subscription_in_byte: int = setting(
        0, "a second, for each partition; deliveries are slowed down; 0: no limit", minimum=0
    )
    ttl_duration_default_in_seconds: int = setting(0, "acknowledge what is older; 0: never", minimum=0)
    backlog_quota_default_limit_bytes: int = setting(
        -1, "largest backlog of a topic; -1: no limit", minimum=-1
    )
    backlog_quota_default_limit_second: int = setting(
        -1, "oldest backlog of a topic; -1: no limit", minimum=-1
    )
    backlog_quota_default_retention_policy: str = setting(
        "producer_request_hold",
        "at a backlog's limit",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    broker_service_compaction_threshold_in_bytes: int = setting(
        0, "compact a topic that has grown by so much; 0: never", minimum=0
    )
    broker_service_compaction_monitor_interval_in_seconds: int = setting(
        60, "between two looks whether a topic is to be compacted", minimum=1
    )
    topic_compaction_retain_null_key: bool = setting(False, "compaction keeps messages without a key")
    compaction_max_key_bytes: int = setting(
        64 * MIB, "of keys that a compaction has in memory; more passes beyond", minimum=1
    )
    remote_url: str = setting(
        OFF, "object store with a journal of the stores: s3://bucket/prefix, gs://, az://, file:///shared"
    )
    remote_durability: str = setting(
        "async", "receipts wait for remote_url: never, up to a lag, or always", choices=REMOTE_DURABILITY
    )
    remote_lag_seconds: int = setting(30, "of what async receipts may confirm ahead of remote_url", minimum=1)
    managed_ledger_offload_threshold_in_bytes: int = setting(
        -1, "leave a topic's oldest segments to remote_url beyond so much on the disk; -1: never", minimum=-1
    )
    managed_ledger_offload_threshold_in_seconds: int = setting(
        -1, "leave segments to remote_url whose ledger was closed so long ago; -1: never", minimum=-1
    )
    managed_ledger_offload_deletion_lag_ms: int = setting(
        0, "keep segments on the disk for so long after their ledger was closed", minimum=0
    )
    offload_disk_percent: int = setting(
        0,
        "leave the oldest segments to remote_url while the disk is so full; 0: never",
        minimum=0,
        maximum=100,
    )
    offload_cache_bytes: int = setting(
        GIB, "of a node's disk, for what is read of segments that are only at remote_url", minimum=64 * MIB
    )
    node_loss_seconds: int = setting(
        60, "others take over what a store shipped that is away for so long; 0: never by itself", minimum=0
    )
    schema_compatibility_strategy: str = setting(
        "FULL", "a new version of a schema must be readable so", choices=SCHEMA_COMPATIBILITY
    )
    is_allow_auto_update_schema_enabled: bool = setting(True, "producers register new versions of schemas")
    is_schema_validation_enforced: bool = setting(
        False, "refuse producers without a schema on topics that have one"
    )
    subscription_expiration_time_minutes: int = setting(
        0, "delete a subscription nobody used for so long; 0: never", minimum=0
    )
    broker_delete_inactive_topics_enabled: bool = setting(False, "delete topics that nobody uses")
    broker_delete_inactive_topics_mode: str = setting(
        "delete_when_no_subscriptions",
        "which of them",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = setting(
        60, "seconds without use after which", minimum=1
    )
    default_retention_time_in_minutes: int = setting(0, "keep consumed messages; -1: for ever", minimum=-1)
    default_retention_size_in_mb: int = setting(
        0, "keep consumed messages; -1: all", minimum=-1, pulsar_key="defaultRetentionSizeInMB"
    )
    retention_check_interval_in_seconds: int = setting(120, "between two trims of a topic", minimum=1)
    new_topic_retention_seconds: int = setting(
        120,
        "keep a topic's first messages for so long, consumed or not, for those who look for new topics, "
        "unless the partition goes to sleep meanwhile with all of it consumed; let it and "
        "`idle_actor_passivation_seconds` be longer than their discovery period",
        minimum=0,
    )
    managed_ledger_max_entries_per_ledger: int = setting(50_000, "start a new ledger there", minimum=1)
    managed_ledger_max_size_per_ledger_mbytes: int = setting(2048, "start a new ledger there", minimum=1)
    managed_ledger_min_ledger_rollover_time_minutes: int = setting(
        10, "never sooner than this, whatever is full", minimum=0
    )
    managed_ledger_max_ledger_rollover_time_minutes: int = setting(240, "never later than this", minimum=1)

    data_dir: str = setting("~/.pulsar-ray", "directory everything durable lives in, on a local disk")
    allow_founding: bool = setting(
        False, "let Client() begin a new, empty broker on a Ray that its program did not start"
    )
    allow_new_stores: bool = setting(
        False, "take in new nodes with an empty data directory; off: after `pulsar-ray init-store`"
    )
    disk_low_water_mark_bytes: int = setting(
        -1, "refuse messages with less free space; -1: max(1 GiB, 2% of the disk)", minimum=-1
    )
    disk_warning_percent: int = setting(
        80,
        "warn of a disk that is so full, or has less than twice the low-water mark free; 0: never",
        minimum=0,
        maximum=100,
    )
    embedded_idle_shutdown_seconds: float = setting(
        60.0, "end an embedded broker this long after the last program on it; 0: never", minimum=0
    )
    embedded_dashboard: bool = setting(False, "start the Ray of an embedded broker with Ray's dashboard")
    session_lease_seconds: float = setting(60.0, "a client silent this long is taken for dead", minimum=1)
    reattach_grace_seconds: float = setting(
        5.0, "a client that lost its connection keeps its place this long", minimum=0
    )
    idle_actor_passivation_seconds: float = setting(
        60.0, "an actor that nobody uses goes to sleep then; 0: never", minimum=0
    )
    max_active_actors: int = setting(
        -1,
        "active partitions and subscriptions of a node; -1: one for each 80 MiB of memory; 0: no limit",
        minimum=-1,
    )
    metrics_interval_seconds: float = setting(
        5.0, "figures go to Ray's metrics so often; 0: no metrics", minimum=0, maximum=10
    )
    metrics_max_topics: int = setting(
        200, "topics of a node with labels of their own in metrics; the rest is 'other'", minimum=0
    )
    metrics_max_subscriptions: int = setting(200, "the same for its subscriptions", minimum=0)
    tcp_port_range: str = setting("0", "TCP ports actors listen on: 'first-last', or 0 for any")
    http_listen: str = setting("off", "where HTTP is served: 'port' on 127.0.0.1, or 'host:port'")
    http_on_every_node: bool = setting(False, "serve HTTP on each node of the Ray cluster, not on one")
    http_advertised_url: str = setting(
        "", "where a proxy serves HTTP for others, as 'https://host'; its X-Forwarded-For is believed"
    )
    authentication_enabled: bool = setting(False, "ask for a token or password at HTTP")
    token_secret_key: str = setting(
        "", "secret that signs tokens: a path, file:// or data:, 32 bytes or more", is_secret=True
    )
    token_public_key: str = setting("", "public key that checks tokens, in the same places, in DER or PEM")
    token_public_alg: str = setting(
        "RS256",
        "algorithm of tokens under token_public_key",
        choices=("RS256", "RS384", "RS512", "ES256", "ES384", "ES512"),
    )
    token_auth_claim: str = setting("sub", "claim of a token that names the role")
    token_audience_claim: str = setting(
        "", "claim of a token that names whom it is for; empty: not looked at"
    )
    token_audience: str = setting("", "what that claim must name")
    basic_auth_conf: str = setting(
        "", "users and passwords of `htpasswd -m`, in the same places", is_secret=True
    )
    anonymous_user_role: str = setting("", "role of who shows nothing; empty: they are refused")
    authorization_enabled: bool = setting(False, "let roles do at HTTP what they have the right to")
    super_user_roles: str = setting("", "roles that may do everything, with commas between them")
    tls_certificate_file_path: str = setting("", "certificate of HTTP, in PEM; with it HTTP is HTTPS")
    tls_key_file_path: str = setting("", "its key, in PEM")
    tls_trust_certs_file_path: str = setting(
        "", "who signs certificates of clients, in PEM: their common names are roles"
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(False, "let in only who has one")
    lane_buffer_budget_bytes: int = setting(
        64 * MIB,
        "received bytes an actor holds before it stops reading; a connection: half",
        minimum=16 * MIB,
    )
    log_format: str = setting("text", "lines of the broker's log", choices=("text", "json"))
    log_level: str = setting(
        "INFO", "lowest level in the broker's log", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    segment_size_bytes: int = setting(
        128 * MIB, "start a new segment file there", minimum=64 * KIB, maximum=2 * GIB
    )
    index_checkpoint_bytes: int = setting(
        16 * MIB, "log bytes between index checkpoints; recovery reads about as many", minimum=64 * KIB
    )
    index_checkpoint_entries: int = setting(20_000, "entries between index checkpoints", minimum=1)
    max_block_rows: int = setting(
        8192, "messages in one batch of send_many and send_arrow", minimum=1, maximum=8192
    )
    max_block_bytes: int = setting(MIB, "payload of one such batch", minimum=KIB, maximum=MAX_FRAME_BYTES)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, checked(field, getattr(self, field.name)))
        object.__setattr__(self, "data_dir", _absolute(self.data_dir))
        for name in _PLACES:
            # Read by a process that runs elsewhere.
            if (place := getattr(self, name)) and not place.startswith(("data:", "file:")):
                object.__setattr__(self, name, os.path.abspath(os.path.expanduser(place)))
        self.tcp_ports()
        self.http_address()
        self.advertised_authority()
        self.subscription_types()
        self._check_pairs()
        self._check_doors()

    def _check_doors(self) -> None:
        if self.authentication_enabled and not (
            self.token_secret_key
            or self.token_public_key
            or self.basic_auth_conf
            or self.tls_trust_certs_file_path
        ):
            raise InvalidConfiguration(
                "authentication_enabled is true, and nobody could come in: give token_secret_key, "
                "token_public_key, basic_auth_conf or tls_trust_certs_file_path"
            )
        if bool(self.tls_certificate_file_path) != bool(self.tls_key_file_path):
            raise InvalidConfiguration(
                "give both tls_certificate_file_path and tls_key_file_path, or neither"
            )
        is_plain = self.http_address() is not None and not self.tls_certificate_file_path
        if self.tls_trust_certs_file_path and is_plain:
            raise InvalidConfiguration(
                "tls_trust_certs_file_path needs tls_certificate_file_path where HTTP is served"
            )
        if self.tls_require_trusted_client_cert_on_connect and not self.tls_trust_certs_file_path:
            raise InvalidConfiguration(
                "tls_require_trusted_client_cert_on_connect needs tls_trust_certs_file_path"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise InvalidConfiguration(
                "authorization_enabled is true, and nobody is asked who they are: set authentication_enabled"
            )

    def _check_pairs(self) -> None:
        needed = self.max_message_size + ENTRY_OVERHEAD_BYTES
        if self.netty_max_frame_size_bytes < needed:
            raise InvalidConfiguration(
                f"netty_max_frame_size_bytes is {self.netty_max_frame_size_bytes}, too little for "
                f"max_message_size {self.max_message_size}: set it to at least {needed}"
            )
        shortest = self.managed_ledger_min_ledger_rollover_time_minutes
        longest = self.managed_ledger_max_ledger_rollover_time_minutes
        if shortest > longest:
            raise InvalidConfiguration(
                f"managed_ledger_min_ledger_rollover_time_minutes is {shortest}: give at most "
                f"managed_ledger_max_ledger_rollover_time_minutes, which is {longest}"
            )

    @classmethod
    def load(
        cls,
        config_file: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Settings:
        """Settings from keywords, before the environment, before a YAML file, before the defaults.

        Environment variables are PULSAR_RAY_ and the name in capitals; PULSAR_RAY_CONFIG_FILE names the
        file if `config_file` does not. Its keys may be Pulsar's. A keyword that is None is as if not given.
        Raises InvalidConfiguration for an unknown name, with the nearest known one, or a bad value.
        """
        return cls(**cls.given(config_file, env, **overrides))

    @staticmethod
    def given(
        config_file: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Collect values from keywords, environment and file, without defaults and unchecked."""
        if env is None:
            env = os.environ
        path = config_file if config_file is not None else env.get(CONFIG_FILE_VARIABLE)
        values: dict[str, Any] = _from_file(os.fspath(path)) if path else {}
        values |= _from_environment(env)
        values |= _from_keywords(overrides)
        return values

    def replace(self, **overrides: Any) -> Settings:
        """A copy with other values. Raises InvalidConfiguration as `load` does."""
        current: dict[str, Any] = dataclasses.asdict(self)
        return Settings(**(current | _from_keywords(overrides)))

    def described(self) -> dict[str, SettingValue]:
        """All settings by name, to be shown: without a key that stands in one."""
        return {
            name: "data: (not shown)"
            if field.metadata["is_secret"] and str(getattr(self, name))[:5].lower() == "data:"
            else getattr(self, name)
            for name, field in _FIELDS.items()
        }

    def tcp_ports(self) -> tuple[int, int]:
        """First and last port of tcp_port_range; (0, 0) stands for any free one."""
        match = _PORT_RANGE.match(self.tcp_port_range)
        first = int(match[1]) if match else -1
        last = int(match[2] or first) if match else -1
        if first == last == 0 or 1 <= first <= last <= 65_535:
            return first, last
        raise InvalidConfiguration(
            f"tcp_port_range is {self.tcp_port_range!r}: give '0', a port, or 'first-last' within 1 to 65535"
        )

    def http_address(self) -> tuple[str, int] | None:
        """Host and port of http_listen; None if HTTP is not served.

        Port 0 stands for any free one.
        """
        if self.http_listen == OFF:
            return None
        host, _, port = self.http_listen.rpartition(":")
        if port.isascii() and port.isdigit() and int(port) <= 65_535:
            return host.strip("[]") or "127.0.0.1", int(port)
        raise InvalidConfiguration(
            f"http_listen is {self.http_listen!r}: give 'off', a port within 0 to 65535, or 'host:port'"
        )

    def advertised_authority(self) -> str:
        """Host, and port if it is given, of http_advertised_url; "" without a proxy."""
        url = self.http_advertised_url
        match = _OUTER_URL.fullmatch(url)
        if url and match is None:
            raise InvalidConfiguration(
                f"http_advertised_url is {url!r}: give 'https://host', with a port if need be, and no path"
            )
        return match[1] if match else ""

    def superusers(self) -> frozenset[str]:
        """super_user_roles as names."""
        return frozenset(name.strip() for name in self.super_user_roles.split(",") if name.strip())

    def subscription_types(self) -> frozenset[str]:
        """subscription_types_enabled as names. Raises InvalidConfiguration for one that there is not."""
        names = [name.strip() for name in self.subscription_types_enabled.split(",")]
        for name in names:
            if name not in SUBSCRIPTION_TYPES:
                raise InvalidConfiguration(
                    f"subscription_types_enabled has {name!r}: give some of {', '.join(SUBSCRIPTION_TYPES)}, "
                    "with commas between them"
                )
        return frozenset(names)

    def low_water_mark_bytes(self, disk_bytes: int) -> int:
        """disk_low_water_mark_bytes, worked out for a disk of this size."""
        if self.disk_low_water_mark_bytes >= 0:
            return self.disk_low_water_mark_bytes
        return max(GIB, disk_bytes // 50)

    def active_actor_limit(self, memory_bytes: int) -> int:
        """max_active_actors, worked out for a node with this much memory."""
        if self.max_active_actors >= 0:
            return self.max_active_actors or _MAX_INT32
        return max(8, memory_bytes // _BYTES_PER_ACTIVE_ACTOR)


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
_NAME_OF_KEY = {pulsar_key(field): field.name for field in _FIELDS.values()}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InvalidConfiguration as `Settings.load` does for such keywords."""
    _from_keywords(settings)


def setting_field(name: str) -> dataclasses.Field[Any]:
    """The declaration of a setting, for who checks its values."""
    return _FIELDS[name]


def describe_settings() -> list[tuple[str, SettingValue, str]]:
    """(name, default, meaning) of every setting."""
    return [(field.name, default_of(field), field.metadata["doc"]) for field in _FIELDS.values()]


def _absolute(data_dir: str) -> str:
    path = os.path.expanduser(data_dir)
    if path.startswith("~") or "\0" in path:
        raise InvalidConfiguration(f"data_dir is {data_dir!r}: give the path of a directory")
    return os.path.abspath(path)


def _from_keywords(keywords: Mapping[str, Any]) -> dict[str, SettingValue]:
    for name in keywords:
        if name not in _FIELDS:
            raise unknown_setting(name, _FIELDS, "")
    return {
        name: checked(_FIELDS[name], os.fspath(value) if isinstance(value, os.PathLike) else value)
        for name, value in keywords.items()
        if value is not None
    }


def _from_environment(env: Mapping[str, str]) -> dict[str, SettingValue]:
    variables = {ENVIRONMENT_PREFIX + name.upper(): name for name in _FIELDS}
    values = {}
    for variable, text in env.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in (CONFIG_FILE_VARIABLE, PURE):
            continue
        if variable not in variables:
            raise unknown_setting(variable, [*variables, CONFIG_FILE_VARIABLE], " in the environment")
        name = variables[variable]
        values[name] = parsed(_FIELDS[name], text, f" (from {variable})")
    return values


def _from_file(path: str) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {}
    source = f" in {path}"
    for key, value in _yaml_mapping(path).items():
        name = _NAME_OF_KEY.get(key, key)
        if name not in _FIELDS:
            raise unknown_setting(str(key), [*_FIELDS, *_NAME_OF_KEY], source)
        if name in values:
            raise InvalidConfiguration(
                f"{name}{source} is given twice, as Pulsar's key and as ours: remove one"
            )
        values[name] = checked(_FIELDS[name], value, source)
    return values


def _yaml_mapping(path: str) -> dict[Any, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise InvalidConfiguration(
            f"the settings file {path} cannot be read ({error.strerror}): check its path and permissions"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"the settings file {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidConfiguration(
            f"the settings file {path} holds a {type(content).__name__}: write 'name: value' lines"
        )
    return content
