from __future__ import annotations

import builtins
import pickle
from typing import Any

import pytest

from pulsar_ray import errors
from pulsar_ray.errors import CorruptData, InvalidConfiguration, PulsarException, Result, error_from

ALL_ERRORS = sorted(
    {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, PulsarException)},
    key=lambda cls: cls.__name__,
)
OFFICIAL = [getattr(errors, result.name) for result in Result if result is not Result.Ok]


def make(cls: type[PulsarException]) -> PulsarException:
    arguments: dict[type[PulsarException], tuple[Any, ...]] = {
        CorruptData: ("/data/1-0.seg", 4096, "bad sum")
    }
    return cls(*arguments.get(cls, (f"text of {cls.__name__}",)))


def test_there_are_45_official_errors_in_pulsars_order() -> None:
    assert [int(result) for result in Result] == list(range(46))
    by_code = {int(result): result.name for result in Result}
    assert [by_code[code] for code in (0, 2, 21, 45)] == [
        "Ok",
        "InvalidConfiguration",
        "InvalidTopicName",
        "Interrupted",
    ]
    assert [cls.__name__ for cls in OFFICIAL] == [result.name for result in Result][1:]


@pytest.mark.parametrize("cls", OFFICIAL)
def test_official_errors_are_flat_and_carry_their_own_code(cls: type[PulsarException]) -> None:
    assert cls.__bases__[0] is PulsarException
    assert cls.result == Result[cls.__name__]


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_every_error_survives_pickling(cls: type[PulsarException]) -> None:
    error = make(cls)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is cls
        assert str(copy) == str(error)
        assert (copy.text, copy.details, copy.args) == (error.text, error.details, error.args)


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_every_error_survives_a_packet(cls: type[PulsarException]) -> None:
    error = make(cls)
    copy = error_from(cls.__name__, error.text, error.details)
    assert type(copy) is cls
    assert (str(copy), copy.details, copy.result) == (str(error), error.details, error.result)


@pytest.mark.parametrize("cls", [cls for cls in ALL_ERRORS if cls not in (*OFFICIAL, PulsarException)])
def test_our_own_errors_stand_under_an_official_one(cls: type[PulsarException]) -> None:
    official = next(base for base in OFFICIAL if issubclass(cls, base))
    assert cls.result is official.result


def test_an_error_made_from_a_result_code_is_the_official_one() -> None:
    assert type(error_from(Result.Timeout, "late")) is errors.Timeout
    assert type(error_from(28, "large")) is errors.MessageTooBig


@pytest.mark.parametrize("unknown", ["ErrorOfTheFuture", 46, -1])
def test_an_unknown_error_keeps_its_name_in_the_text(unknown: str | int) -> None:
    error = error_from(unknown, "what happened")
    assert type(error) is errors.UnknownError
    assert "what happened" in str(error)
    assert str(unknown) in str(error)


def test_text_begins_with_the_name() -> None:
    assert str(errors.ConsumerBusy("taken by c1")) == "ConsumerBusy: taken by c1"
    assert str(errors.ConsumerBusy()) == "ConsumerBusy"


def test_corrupt_data_names_file_and_offset() -> None:
    error = CorruptData("/data/1-0.seg", 4096, "bad checksum")
    assert str(error) == "CorruptData: /data/1-0.seg is corrupt at byte 4096: bad checksum"
    assert isinstance(error, errors.ChecksumError)


def test_a_subclass_defined_elsewhere_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(LocalError("x", 7)))
    assert (type(copy), copy.text, copy.number) == (LocalError, "x", 7)


class LocalError(errors.InvalidMessage):
    fields = ("number",)

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def test_bad_configuration_is_also_a_value_error() -> None:
    with pytest.raises(ValueError):
        raise InvalidConfiguration("x")


def test_timeout_and_lookup_error_are_not_the_builtins() -> None:
    assert not issubclass(errors.Timeout, TimeoutError)
    assert not issubclass(errors.LookupError, builtins.LookupError)


@pytest.mark.parametrize(
    "name", ["Moved", "WrongNode", "SessionLost", "Fenced", "ServiceUnitNotReady", "NotConnected"]
)
def test_what_passes_by_itself_is_retriable(name: str) -> None:
    assert getattr(errors, name).retriable


@pytest.mark.parametrize(
    "name", ["MessageTooBig", "ProtocolError", "ForkedClient", "CorruptData", "ConsumerBusy", "DataLost"]
)
def test_what_stays_wrong_is_not_retriable(name: str) -> None:
    assert not getattr(errors, name).retriable


PASSES = {
    "ConnectError": "a broker that starts",
    "DiskSpaceLow": "a disk on which somebody makes room",
    "Fenced": "a newer owner, which is found",
    "MemoryBufferIsFull": "messages on their way",
    "Moved": "an actor that is started",
    "NotConnected": "a connection that comes back",
    "ObjectStoreFull": "objects that are let go",
    "ProducerBlockedQuotaExceededError": "a backlog that is read",
    "ProducerBlockedQuotaExceededException": "a backlog that is read",
    "ProducerQueueIsFull": "messages on their way",
    "ReadError": "a connection that comes back",
    "RemoteStoreUnavailable": "an object store that answers again",
    "ServiceUnitNotReady": "an actor that starts",
    "SessionLost": "an attachment that is made again",
    "Timeout": "an answer that comes later",
    "TooManyLookupRequestException": "requests that end",
    "WrongNode": "a node that comes back",
}
"""What each retriable error waits for. Loops that try again for ever end by every other one."""


def test_whatever_is_retriable_waits_for_something_that_comes_by_itself() -> None:
    assert {cls.__name__ for cls in ALL_ERRORS if cls.retriable} == PASSES.keys()
