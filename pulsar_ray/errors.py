"""Every error pulsar_ray raises: Pulsar's 45 names, flat under PulsarException, and ours under those.

An error crosses processes pickled (by Ray) or as (class name, text, details) in a packet. Both keep its class
and fields.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pulsar_ray.api_enum import ApiEnum


class Result(ApiEnum):
    """Pulsar's result codes: what an asynchronous callback gets, one per official exception."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45


E = TypeVar("E", bound="PulsarException")


class PulsarException(Exception):
    """Base of all errors of the broker and its client.

    `result` is the official code, `retriable` says that the same call may succeed later with nothing changed.
    """

    result: ClassVar[Result] = Result.UnknownError
    retriable: ClassVar[bool] = False
    fields: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that belong to the error besides its text."""
    message_id: Any = None
    """The `MessageId` of the stored block that could not be decoded, if any.

    It stands for all messages of the block: the consumer that raises it may acknowledge it, or negatively.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__name__ in Result.__members__:
            cls.result = Result[cls.__name__]

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}: {self.text}" if self.text else name

    def error(self) -> Result:
        """The official code, as the asyncio client's exceptions tell it."""
        return self.result

    @property
    def details(self) -> dict[str, Any]:
        """The values of `fields`: plain values that a packet can carry."""
        return {name: getattr(self, name) for name in self.fields}

    def of_message(self, message_id: Any) -> PulsarException:
        """Name the stored block that could not be decoded, in `message_id` and in the text."""
        self.message_id = message_id
        self.text = f"{self.text} (message id {message_id})"
        return self

    def again(self: E) -> E:
        """Return the error as a new object, to be kept or raised.

        Otherwise its traceback would grow with each raise, and keep the frames of everybody it was raised to,
        and with them the handles that the program has forgotten.
        """
        error = copy.copy(self)
        error.__cause__ = self.__cause__
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.text), self.__dict__


def _restore(cls: type[PulsarException], text: str) -> PulsarException:
    # Not cls(text): subclasses may build their text from other arguments.
    error = cls.__new__(cls)
    PulsarException.__init__(error, text)
    return error


def error_from(error: str | int, text: str, details: Mapping[str, Any] | None = None) -> PulsarException:
    """Make the error again that became (name, text, details).

    `error` is its class name or result code.

    A name unknown here (a newer broker's) becomes an UnknownError that keeps the name in its text.
    """
    cls = _BY_NAME.get(_official_name(error) if isinstance(error, int) else error)
    if cls is None:
        return UnknownError(f"{error}: {text}")
    restored = _restore(cls, text)
    for name in cls.fields:
        setattr(restored, name, (details or {}).get(name))
    return restored


def _official_name(code: int) -> str:
    try:
        return Result(code).name
    except ValueError:
        return f"result {code}"


class UnknownError(PulsarException):
    """Something failed that has no name of its own; the text says what."""


class InvalidConfiguration(PulsarException, ValueError):
    """A setting or argument has a value that cannot work."""


class Timeout(PulsarException):
    """No answer came in time; whether the request was carried out is unknown."""

    retriable = True


class LookupError(PulsarException):  # noqa: A001
    """The owner of a topic could not be found."""


class ConnectError(PulsarException):
    """No connection to the broker could be made."""

    retriable = True


class ReadError(PulsarException):
    """A connection delivered something unreadable or broke while being read."""

    retriable = True


class AuthenticationError(PulsarException):
    """The broker does not accept who we say we are."""


class AuthorizationError(PulsarException):
    """The caller may not do this."""


class ErrorGettingAuthenticationData(PulsarException):
    """The credentials could not be obtained."""


class BrokerMetadataError(PulsarException):
    """The broker's metadata could not be read or changed."""


class BrokerPersistenceError(PulsarException):
    """The broker could not write to or read from its disk."""


class ChecksumError(PulsarException):
    """Stored or received bytes do not match their checksum."""


class ConsumerBusy(PulsarException):
    """The subscription has a consumer that excludes this one."""


class NotConnected(PulsarException):
    """There is no session with the broker at the moment."""

    retriable = True


class AlreadyClosed(PulsarException):
    """The object was closed before."""


class InvalidMessage(PulsarException):
    """A message or its metadata cannot be decoded or stored."""


class SchemaSerializationException(InvalidMessage):
    """A value does not fit its schema; the message can be acknowledged."""


class ConsumerNotInitialized(PulsarException):
    """The consumer was used before it was ready."""


class ProducerNotInitialized(PulsarException):
    """The producer was used before it was ready."""


class ProducerBusy(PulsarException):
    """A producer of this name, or an exclusive one, is connected."""


class TooManyLookupRequestException(PulsarException):
    """Too many lookups are running."""

    retriable = True


class InvalidTopicName(PulsarException):
    """The text is not a topic name."""


class InvalidUrl(PulsarException):
    """The service URL cannot be used."""


class ServiceUnitNotReady(PulsarException):
    """The owner of the topic is starting, moving or gone for a moment."""

    retriable = True


class OperationNotSupported(PulsarException):
    """This object or subscription type has no such operation."""


class ProducerBlockedQuotaExceededError(PulsarException):
    """The backlog quota holds this producer back."""

    retriable = True


class ProducerBlockedQuotaExceededException(PulsarException):
    """The backlog quota refuses the message."""

    retriable = True


class ProducerQueueIsFull(PulsarException):
    """Too many messages of this producer wait for their receipts."""

    retriable = True


class MessageTooBig(PulsarException):
    """The message is larger than max_message_size."""


class TopicNotFound(PulsarException):
    """The topic, or its tenant or namespace, does not exist."""


class SchemaNotFound(TopicNotFound):
    """The topic has no such version of a schema."""


class SubscriptionNotFound(PulsarException):
    """The subscription does not exist.

    `directory` is that of the partition that lacks it, if that is known.

    A topic that was deleted and created again has another one.
    """

    fields = ("directory",)

    def __init__(self, text: str = "", directory: str | None = None) -> None:
        super().__init__(text)
        self.directory = directory


class ConsumerNotFound(PulsarException):
    """The consumer does not exist."""


class UnsupportedVersionError(PulsarException):
    """The other side, or a file, has a version this code does not know."""


class TopicTerminated(PulsarException):
    """The topic was terminated and takes no more messages."""


class CryptoError(PulsarException):
    """A message could not be encrypted or decrypted."""


class IncompatibleSchema(PulsarException):
    """The schema contradicts the ones the topic has."""


class ConsumerAssignError(PulsarException):
    """The key ranges of this consumer cannot be assigned."""


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """Shared and Key_Shared subscriptions know no cumulative acknowledgment."""


class TransactionCoordinatorNotFoundError(PulsarException):
    """No coordinator serves this transaction."""


class InvalidTxnStatusError(PulsarException):
    """The transaction is in a state that forbids this."""


class NotAllowedError(PulsarException):
    """The broker refuses the request in this situation."""


class TransactionConflict(PulsarException):
    """Another transaction has acknowledged this message."""


class TransactionNotFound(PulsarException):
    """The transaction does not exist."""


class ProducerFenced(PulsarException):
    """Another producer has taken this one's exclusive place."""


class MemoryBufferIsFull(PulsarException):
    """The client's memory limit is reached."""

    retriable = True


class Interrupted(PulsarException):
    """The wait was interrupted."""


class DataDirectoryInUse(BrokerPersistenceError):
    """Another process holds the data directory and keeps it."""


class NotOurDataDirectory(InvalidConfiguration):
    """The directory holds something else than pulsar_ray's data."""


class NetworkFileSystem(InvalidConfiguration):
    """The data directory lies on a network file system.

    Its locks and syncs cannot be trusted.
    """


class BrokerNotFounded(ConnectError):
    """No broker was ever made here: run `pulsar-ray start`.

    This program may not make one.
    """

    retriable = False


class CatalogMissing(BrokerMetadataError):
    """There are stores, but not their catalog of topics.

    Nothing is served rather than something empty.
    """


class CatalogConflict(BrokerMetadataError):
    """Several catalogs, or stores of several clusters, lie in one broker's place."""


class UntrustedPath(NotAllowedError):
    """A path that the broker relies on is another user's, or others may change it.

    The text names it and says what to do.
    """


class TooManyActiveActors(NotAllowedError):
    """A node has as many active partitions and subscriptions as `max_active_actors` allows.

    All of them are in use. On the node that has the store `store_id` there are `lacking` too many.
    """

    fields = ("store_id", "lacking")

    def __init__(self, text: str = "", store_id: str = "", lacking: int = 0) -> None:
        super().__init__(text)
        self.store_id = store_id
        self.lacking = lacking


class TooManyConnections(NotAllowedError):
    """An actor has no room for one more connection.

    Its process's limit on open files decides.
    """


class DiskSpaceLow(BrokerPersistenceError):
    """Free space fell below the low-water mark: publishing stops, acknowledging and trimming go on."""

    retriable = True


class ObjectStoreFull(MemoryBufferIsFull):
    """An object store of Ray has no room, nor has its spill disk.

    The text names the node, the size of its store and what to do. Streams and writes try again for minutes
    before they raise it; a landing goes on trying.
    """


class BrokerGone(ConnectError):
    """The embedded broker of a handle has ended: make a new Client.

    Or this process has left the broker's Ray.

    Client.
    """

    retriable = False


class CorruptData(ChecksumError):
    """A stored file is damaged at `offset`; nothing there is delivered as data."""

    fields = ("path", "offset")

    def __init__(self, path: str, offset: int, reason: str = "") -> None:
        super().__init__(f"{path} is corrupt at byte {offset}" + (f": {reason}" if reason else ""))
        self.path = path
        self.offset = offset


class DataLost(ReadError):
    """Messages that were asked for are trimmed, or their topic was deleted and made anew.

    The text names the topics and the positions from and to which they are gone.
    """

    retriable = False


class UnsupportedFormatVersion(UnsupportedVersionError):
    """This code cannot read the format of a file.

    Use the version that wrote the file, or a newer one.
    """


class WrongNode(ServiceUnitNotReady):
    """This node lacks data that exists elsewhere; serving it here would look like losing it."""


class Moved(ServiceUnitNotReady):
    """The actor has handed over or gone to sleep: resolve the topic again."""


class Fenced(ServiceUnitNotReady):
    """A newer owner has taken over the directory; this one may promise nothing any more."""


class IncarnationForgotten(ProducerFenced):
    """The partition does not remember this producer's blocks any more: it begins anew by itself."""


class SessionLost(NotConnected):
    """The actor does not know this session or attachment (any more): attach again."""


class ProtocolError(ReadError):
    """The other side sent a malformed, oversized or unknown packet; its connection is closed."""

    retriable = False


class RemoteStoreUnavailable(BrokerPersistenceError):
    """The object store did not answer; the request may have been done."""

    retriable = True


class RemoteStoreRefused(InvalidConfiguration):
    """The object store cannot be used, for its address, rights or writes."""


class RemoteStoreNotInstalled(RemoteStoreRefused):
    """The library for object stores is missing."""

    def __init__(self, text: str = 'object stores need obstore: pip install "pulsar-ray[remote]"') -> None:
        super().__init__(text)


class JournalDamaged(ChecksumError):
    """An object of the journal is not what its writer wrote."""


class StoreSealed(NotOurDataDirectory):
    """A store was taken over by others, so nothing of its directory is served again."""


class ForkedClient(AlreadyClosed):
    """A forked child used a client of its parent, or made one.

    The latter is refused if the parent is on Ray.
    """

    def __init__(self, text: str = "this client belongs to the parent process") -> None:
        super().__init__(
            f"{text}, and Ray does not work in a forked child: start the child with spawn "
            '(multiprocessing.get_context("spawn")), or make a Client in the child only, before '
            "the parent uses one"
        )


_BY_NAME: dict[str, type[PulsarException]] = {
    cls.__name__: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, PulsarException)
}


_OF_A_PLACE = (ConsumerBusy, ConsumerAssignError, ProducerBusy, ProducerFenced, NotAllowedError)


def text_naming(error: PulsarException, topic: str, subscription: str = "") -> str:
    """Return an error's text, a refusal's with topic and subscription in front.

    Clients open producers and consumers of many topics by one call, and have to know which one refused.
    """
    if not isinstance(error, _OF_A_PLACE):
        return error.text
    names: tuple[str, ...] = () if topic in error.text else (topic,)
    if subscription and repr(subscription) not in error.text:
        names = (*names, f"subscription {subscription!r}")
    return f"{', '.join(names)}: {error.text}" if names else error.text
