from __future__ import annotations

import pickle

import pytest

from pulsar_ray.model import enums


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("CompressionType", {"NONE": 0, "LZ4": 1, "ZLib": 2, "ZSTD": 3, "SNAPPY": 4}),
        ("ConsumerType", {"Exclusive": 0, "Shared": 1, "Failover": 2, "KeyShared": 3}),
        ("KeySharedMode", {"AutoSplit": 0, "Sticky": 1}),
        (
            "PartitionsRoutingMode",
            {"UseSinglePartition": 0, "RoundRobinDistribution": 1, "CustomPartition": 2},
        ),
        ("InitialPosition", {"Latest": 0, "Earliest": 1}),
        ("RegexSubscriptionMode", {"PersistentOnly": 0, "NonPersistentOnly": 1, "AllTopics": 2}),
        ("BatchingType", {"Default": 0, "KeyBased": 1}),
        (
            "ProducerAccessMode",
            {"Shared": 0, "Exclusive": 1, "WaitForExclusive": 2, "ExclusiveWithFencing": 3},
        ),
        ("LoggerLevel", {"Debug": 0, "Info": 1, "Warn": 2, "Error": 3}),
        ("ConsumerCryptoFailureAction", {"FAIL": 0, "DISCARD": 1, "CONSUME": 2}),
        ("SubscriptionMode", {"Durable": 0, "NonDurable": 1}),
        ("HashingScheme", {"JavaStringHash": 0, "Murmur3_32Hash": 1}),
    ],
)
def test_members_and_numbers_are_pulsars(name: str, members: dict[str, int]) -> None:
    enum = getattr(enums, name)
    assert {member: int(value) for member, value in enum.__members__.items()} == members


def test_schema_types_have_pulsars_numbers() -> None:
    numbers = {member.name: int(member) for member in enums.SchemaType}
    assert numbers.pop("ARROW") == 1000
    assert len(numbers) == 16
    assert [numbers[name] for name in ("AVRO", "KEY_VALUE", "PROTOBUF_NATIVE", "BYTES", "AUTO_PUBLISH")] == [
        4,
        15,
        20,
        -1,
        -4,
    ]


def test_they_print_as_names_and_survive_pickling() -> None:
    shared = enums.ConsumerType.Shared
    assert str(shared) == f"{shared}" == "ConsumerType.Shared"
    assert f"{shared:>22}" == "   ConsumerType.Shared"
    assert pickle.loads(pickle.dumps(shared)) is shared
