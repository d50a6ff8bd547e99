"""The enums of the client API, with Pulsar's names and numbers."""

from __future__ import annotations

from pulsar_ray.api_enum import ApiEnum


class CompressionType(ApiEnum):
    """Codec of an entry's payload."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class ConsumerType(ApiEnum):
    """How a subscription shares its messages among consumers."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class KeySharedMode(ApiEnum):
    """Whether hash ranges are assigned by the dispatcher or declared by the consumer."""

    AutoSplit = 0
    Sticky = 1


class PartitionsRoutingMode(ApiEnum):
    """How a producer picks the partition of a message without key."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class InitialPosition(ApiEnum):
    """Where a new subscription starts."""

    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(ApiEnum):
    """Which topics a pattern may match."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class BatchingType(ApiEnum):
    """Whether a batch mixes keys."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(ApiEnum):
    """How far a producer has the topic for itself."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class LoggerLevel(ApiEnum):
    """Levels of the client's console and file loggers."""

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


class ConsumerCryptoFailureAction(ApiEnum):
    """How a consumer treats a message that it cannot decrypt."""

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class SchemaType(ApiEnum):
    """Kind of a schema."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    KEY_VALUE = 15
    PROTOBUF_NATIVE = 20
    ARROW = 1000  # not one of Pulsar's
    BYTES = -1
    AUTO_CONSUME = -3
    AUTO_PUBLISH = -4


class SubscriptionMode(ApiEnum):
    """Whether a subscription survives its consumers."""

    Durable = 0
    NonDurable = 1


class HashingScheme(ApiEnum):
    """Hash that maps a key to a partition."""

    JavaStringHash = 0
    Murmur3_32Hash = 1
