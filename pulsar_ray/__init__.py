"""A durable broker with Apache Pulsar's semantics inside a Ray cluster.

The names of the official `pulsar-client` package, so that code moves by changing the import and the service
URL.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if sys.platform != "linux":
    raise ImportError(
        f"pulsar_ray runs on Linux only (fdatasync, pidfd and SO_PEERCRED are missing on {sys.platform}). "
        "Use a Linux container, for example: docker run -it -v $PWD:/app -w /app python:3.12 bash"
    )

# Python takes a compiled module in place of the source beside it. That is looked at only where it may not be
# wanted: on request, and in a checkout, whose sources change.
if os.environ.get("PULSAR_RAY_PURE") or os.path.exists(
    f"{__path__[0]}/.compiled.{sys.implementation.cache_tag}.json"
):
    importlib.import_module("pulsar_ray.compiled").choose()

# Names are looked up when they are first used: broker actors import parts of this package and must not pay
# for the rest.
_MODULES = {
    "pulsar_ray.admin": ("Admin",),
    "pulsar_ray.client.options.authentication": (
        "Authentication",
        "AuthenticationAthenz",
        "AuthenticationBasic",
        "AuthenticationOauth2",
        "AuthenticationTLS",
        "AuthenticationToken",
    ),
    "pulsar_ray.client.client": ("Client",),
    "pulsar_ray.client.consumer.consumer": ("Consumer",),
    "pulsar_ray.client.encryption.encryption_context": ("EncryptionContext", "EncryptionKey"),
    "pulsar_ray.client.options.crypto_key_reader": ("CryptoKeyReader",),
    "pulsar_ray.client.options.loggers": ("ConsoleLogger", "FileLogger"),
    "pulsar_ray.client.received.message": ("Message",),
    "pulsar_ray.client.options.policies": (
        "ConsumerBatchReceivePolicy",
        "ConsumerDeadLetterPolicy",
        "ConsumerEventListener",
        "ConsumerKeySharedPolicy",
        "DeadLetterProducerContext",
        "MultiplierRedeliveryBackoff",
        "RedeliveryBackoff",
    ),
    "pulsar_ray.client.producer.producer": ("Producer",),
    "pulsar_ray.client.consumer.reader": ("Reader",),
    "pulsar_ray.client.options.schema": ("BytesSchema", "StringSchema"),
    "pulsar_ray.client.options.service_info": ("AutoClusterFailover", "ServiceInfo", "ServiceInfoProvider"),
    "pulsar_ray.client.consumer.table_view": ("TableView",),
    "pulsar_ray.errors": ("PulsarException", "Result"),
    "pulsar_ray.functions": ("Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"),
    "pulsar_ray.model.enums": (
        "BatchingType",
        "CompressionType",
        "ConsumerCryptoFailureAction",
        "ConsumerType",
        "HashingScheme",
        "InitialPosition",
        "KeySharedMode",
        "LoggerLevel",
        "PartitionsRoutingMode",
        "ProducerAccessMode",
        "RegexSubscriptionMode",
        "SchemaType",
        "SubscriptionMode",
    ),
    "pulsar_ray.model.message_id": ("MessageId",),
}
_SUBMODULES = ("exceptions", "schema", "tableview")
"""Imported when they are first used, as `import pulsar` brings them along."""
_HOME = {name: module for module, names in _MODULES.items() for name in names}

if TYPE_CHECKING:
    from pulsar_ray import exceptions as exceptions
    from pulsar_ray import schema as schema
    from pulsar_ray import tableview as tableview
    from pulsar_ray.admin import Admin as Admin
    from pulsar_ray.client.client import Client as Client
    from pulsar_ray.client.consumer.consumer import Consumer as Consumer
    from pulsar_ray.client.consumer.reader import Reader as Reader
    from pulsar_ray.client.consumer.table_view import TableView as TableView
    from pulsar_ray.client.encryption.encryption_context import EncryptionContext as EncryptionContext
    from pulsar_ray.client.encryption.encryption_context import EncryptionKey as EncryptionKey
    from pulsar_ray.client.options.authentication import Authentication as Authentication
    from pulsar_ray.client.options.authentication import AuthenticationToken as AuthenticationToken
    from pulsar_ray.client.options.crypto_key_reader import CryptoKeyReader as CryptoKeyReader
    from pulsar_ray.client.options.loggers import ConsoleLogger as ConsoleLogger
    from pulsar_ray.client.options.loggers import FileLogger as FileLogger
    from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy
    from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy
    from pulsar_ray.client.options.policies import ConsumerEventListener as ConsumerEventListener
    from pulsar_ray.client.options.policies import ConsumerKeySharedPolicy as ConsumerKeySharedPolicy
    from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff as MultiplierRedeliveryBackoff
    from pulsar_ray.client.options.policies import RedeliveryBackoff as RedeliveryBackoff
    from pulsar_ray.client.options.schema import BytesSchema as BytesSchema
    from pulsar_ray.client.options.schema import StringSchema as StringSchema
    from pulsar_ray.client.options.service_info import AutoClusterFailover as AutoClusterFailover
    from pulsar_ray.client.options.service_info import ServiceInfo as ServiceInfo
    from pulsar_ray.client.options.service_info import ServiceInfoProvider as ServiceInfoProvider
    from pulsar_ray.client.producer.producer import Producer as Producer
    from pulsar_ray.client.received.message import Message as Message
    from pulsar_ray.errors import PulsarException as PulsarException
    from pulsar_ray.errors import Result as Result
    from pulsar_ray.functions import Context as Context
    from pulsar_ray.functions import Function as Function
    from pulsar_ray.functions import IdentitySerDe as IdentitySerDe
    from pulsar_ray.functions import PickleSerDe as PickleSerDe
    from pulsar_ray.functions import SerDe as SerDe
    from pulsar_ray.model.enums import BatchingType as BatchingType
    from pulsar_ray.model.enums import CompressionType as CompressionType
    from pulsar_ray.model.enums import ConsumerCryptoFailureAction as ConsumerCryptoFailureAction
    from pulsar_ray.model.enums import ConsumerType as ConsumerType
    from pulsar_ray.model.enums import HashingScheme as HashingScheme
    from pulsar_ray.model.enums import InitialPosition as InitialPosition
    from pulsar_ray.model.enums import KeySharedMode as KeySharedMode
    from pulsar_ray.model.enums import LoggerLevel as LoggerLevel
    from pulsar_ray.model.enums import PartitionsRoutingMode as PartitionsRoutingMode
    from pulsar_ray.model.enums import ProducerAccessMode as ProducerAccessMode
    from pulsar_ray.model.enums import RegexSubscriptionMode as RegexSubscriptionMode
    from pulsar_ray.model.enums import SchemaType as SchemaType
    from pulsar_ray.model.enums import SubscriptionMode as SubscriptionMode
    from pulsar_ray.model.message_id import MessageId as MessageId


def __getattr__(name: str) -> Any:
    if name == "__all__":  # for `import *` alone, which then asks for each name
        return sorted({*_SUBMODULES, *_HOME, *_error_names()})
    module = _HOME.get(name)
    if name in _SUBMODULES:
        return importlib.import_module(f"pulsar_ray.{name}")
    if module is None:
        if name in _error_names():
            return getattr(importlib.import_module("pulsar_ray.errors"), name)
        raise AttributeError(f"module 'pulsar_ray' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_HOME, *_error_names()})


def _error_names() -> frozenset[str]:
    errors = importlib.import_module("pulsar_ray.errors")
    return frozenset(
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PulsarException)
    )
