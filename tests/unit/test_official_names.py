"""Every name of the official package: a program moves by changing its import."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import pulsar_ray
from pulsar_ray import errors
from pulsar_ray.errors import Result

NAMES = """
Authentication AuthenticationAthenz AuthenticationBasic AuthenticationOauth2 AuthenticationTLS
AuthenticationToken AutoClusterFailover BatchingType BytesSchema Client CompressionType
ConsoleLogger Consumer ConsumerBatchReceivePolicy ConsumerCryptoFailureAction
ConsumerDeadLetterPolicy ConsumerKeySharedPolicy ConsumerType CryptoKeyReader EncryptionContext
EncryptionKey FileLogger
InitialPosition KeySharedMode LoggerLevel Message MessageId PartitionsRoutingMode Producer
ProducerAccessMode PulsarException Reader RegexSubscriptionMode Result SchemaType ServiceInfo
ServiceInfoProvider StringSchema TableView exceptions schema tableview __version__
Context Function IdentitySerDe PickleSerDe SerDe
"""
LEFT_OUT = """
BatchReceivePolicy DeadLetterPolicyBuilder KeySharedPolicy MessageBatch
"""
METHODS = {
    "Client": """close create_producer create_reader create_table_view get_service_info get_topic_partitions
        shutdown subscribe""",
    "Producer": "close flush is_connected last_sequence_id producer_name send send_async topic",
    "Consumer": """acknowledge acknowledge_cumulative batch_receive close consumer_name get_last_message_id
        is_connected negative_acknowledge pause_message_listener receive redeliver_unacknowledged_messages
        resume_message_listener seek subscription_name topic unsubscribe""",
    "Reader": "close has_message_available is_connected read_next seek topic",
    "EncryptionContext": "algorithm batch_size compression_type is_decryption_failed keys param"
    " uncompressed_message_size",
    "TableView": "close for_each for_each_and_listen get",
    "Message": """data encryption_context event_timestamp has_null_value message_id ordering_key partition_key
        producer_name properties publish_timestamp redelivery_count schema_version topic_name value""",
    "MessageId": "batch_index deserialize earliest entry_id latest ledger_id partition serialize wrap",
    "ServiceInfo": "service_url tls_trust_certs_file_path use_tls wrap",
    "ServiceInfoProvider": "close initial_service_info initialize",
}
DOCS = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.mark.parametrize("name", NAMES.split())
def test_it_is_there(name: str) -> None:
    assert getattr(pulsar_ray, name) is not None
    assert name in dir(pulsar_ray)


@pytest.mark.parametrize(("kind", "methods"), METHODS.items())
def test_its_classes_have_all_methods(kind: str, methods: str) -> None:
    missing = [name for name in methods.split() if not hasattr(getattr(pulsar_ray, kind), name)]
    assert missing == []


def test_every_enum_prints_as_its_name() -> None:
    exposed = [getattr(pulsar_ray, name) for name in dir(pulsar_ray)]
    enums = [kind for kind in exposed if isinstance(kind, type) and issubclass(kind, Enum)]
    assert len(enums) == 14
    for member in [member for kind in enums for member in kind]:
        text = f"{type(member).__name__}.{member.name}"
        assert str(member) == f"{member}" == f"{member!s}" == "%s" % member == "{}".format(member) == text  # noqa: UP031, UP032
        assert f"{member:>60}" == text.rjust(60)
        assert repr(member) == f"<{text}: {member.value}>"
        assert pickle.loads(pickle.dumps(member)) is member
    assert str(Result.Ok) == "Result.Ok"


def test_what_is_left_out_is_said() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in LEFT_OUT.split():
        assert not hasattr(pulsar_ray, name)
        assert f"`{name}`" in text, name


def test_submodules_come_with_the_package() -> None:
    code = (
        "import pulsar_ray as pulsar\n"
        "assert issubclass(pulsar.exceptions.Timeout, pulsar.PulsarException)\n"
        "assert pulsar.schema.StringSchema is pulsar.StringSchema\n"
        "assert pulsar.tableview.TableView is pulsar.TableView\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exceptions_are_all_there_and_nothing_else() -> None:
    exceptions = importlib.import_module("pulsar_ray.exceptions")
    expected = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PulsarException)
    }
    assert set(exceptions.__all__) == expected
    assert all(getattr(exceptions, name) is getattr(errors, name) for name in expected)


def test_a_client_says_where_it_connects() -> None:
    info = pulsar_ray.Client("head:6379").get_service_info()
    assert (info.service_url, info.use_tls, info.tls_trust_certs_file_path) == ("head:6379", False, None)


def test_a_choice_of_clusters_is_checked_where_it_is_made() -> None:
    info = pulsar_ray.ServiceInfo("h:1")
    choice = pulsar_ray.AutoClusterFailover(info, [info], check_interval_ms=10)
    assert (choice.primary, choice.secondary, choice.check_interval_ms) == (info, [info], 10)
    for secondary in ([], [None], info, ["h:2"]):
        with pytest.raises(ValueError, match="secondary"):
            pulsar_ray.AutoClusterFailover(info, secondary)  # type: ignore[arg-type]
    for name in ("check_interval_ms", "failover_threshold", "switch_back_threshold"):
        with pytest.raises(ValueError, match=name):
            pulsar_ray.AutoClusterFailover(info, [info], **{name: 0})
    with pytest.raises(ValueError, match="service_url"):
        pulsar_ray.ServiceInfo(None)  # type: ignore[arg-type]
