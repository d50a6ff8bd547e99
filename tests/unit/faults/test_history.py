"""The history checker finds each kind of violation where one is planted, and none in a good history."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.history.checker import Verdict, judge
from tests.faults.history.operations import (
    AcknowledgeOk,
    ChangeInvoked,
    ChangeOk,
    ClockShown,
    ConsumerOpening,
    CumulativeOk,
    DeclaredSubscription,
    DeclaredTopic,
    Heard,
    MarkDeleted,
    Operation,
    ProducerOpened,
    ReadBegan,
    ReadEnded,
    ReadRow,
    Received,
    Remains,
    SeekInvoked,
    SeekOk,
    SendFailed,
    SendInvoked,
    SendOk,
    SendUnknown,
    Stored,
    ValueFound,
    digest_of,
    note,
    payload,
    source_of,
)
from tests.faults.history.rules import RULES
from tests.faults.journal import Id, Journal

TOPIC, LETTERS = "orders", "orders-shared-DLQ"
DUE_MS = 1_000_000
KEYS = ("a", "b")
BAD, UNKNOWN, DELAYED = 5, 6, 7


class History:
    """Eight messages by one producer on two partitions, given to a subscription of each order.

    Number 5 fails always, 6 has no receipt and is not stored, 7 is delayed; 0 and 2 are one batch.
    """

    def __init__(self) -> None:
        self.by_process: dict[str, list[Operation]] = {}
        for topic, letters_of in ((TOPIC, None), (LETTERS, TOPIC)):
            self.add("run", DeclaredTopic(topic, letters_of))
        for subscription, order in (("shared", "none"), ("failover", "partition"), ("keyed", "key")):
            self.add("run", DeclaredSubscription(TOPIC, subscription, order))
        for number in range(8):
            self.add("producer", self.invoked(number))
            self.add(
                "producer",
                SendUnknown(TOPIC, "p", number, "Timeout")
                if number == UNKNOWN
                else SendOk(TOPIC, "p", number, place(number)),
            )
        for number in sorted(set(range(8)) - {UNKNOWN}, key=place):
            self.add("reader", self.stored(number))
            for subscription in ("shared", "failover", "keyed"):
                self.add(f"c-{subscription}", self.received(number, subscription))
            self.add("c-shared", AcknowledgeOk(TOPIC, "shared", place(number), size(number)))
        self.add("reader", Stored(LETTERS, (-1, 9, 0, -1), "p", BAD, KEYS[1], digest_of(data(BAD))))
        self.add("c-failover", CumulativeOk(TOPIC, "failover", place(DELAYED), 1))

    def add(self, process: str, operation: Operation) -> None:
        self.by_process.setdefault(process, []).append(operation)

    def drop(self, unwanted: Callable[[Operation], bool]) -> None:
        for operations in self.by_process.values():
            operations[:] = [each for each in operations if not unwanted(each)]

    def invoked(self, number: int) -> SendInvoked:
        due_ms = DUE_MS if number == DELAYED else 0
        key = KEYS[number % 2]
        return SendInvoked(TOPIC, "p", number, key, digest_of(data(number)), due_ms, number == BAD)

    def stored(self, number: int, at: Id | None = None) -> Stored:
        key = KEYS[number % 2]
        return Stored(TOPIC, at or place(number), "p", number, key, digest_of(data(number)))

    def received(self, number: int, subscription: str) -> Received:
        key, digest = KEYS[number % 2], digest_of(data(number))
        return Received(TOPIC, subscription, place(number), "p", number, key, digest, DUE_MS)

    def verdict(self, directory: Path, clock_error_ms: int = 0) -> Verdict:
        """Write it down and judge it."""
        for process, operations in self.by_process.items():
            journal = Journal(directory / f"{process}.journal")
            for operation in operations:
                note(journal, operation)
        return judge(directory, clock_error_ms)


def data(number: int) -> bytes:
    return payload("p", number, 10)


def place(number: int) -> Id:
    """Even numbers are on partition 0, odd ones on 1; the first two of partition 0 are one batch."""
    return (0, 1, 0, number // 2) if number in (0, 2) else (number % 2, 1, 1 + number, -1)


def size(number: int) -> int:
    return 2 if number in (0, 2) else 1


def of(kind: type[Operation], number: int) -> Callable[[Operation], bool]:
    """Whether an operation is of this kind, and on `orders` about this number."""

    def matches(operation: Operation) -> bool:
        return (
            isinstance(operation, kind)
            and getattr(operation, "topic", None) == TOPIC
            and getattr(operation, "number", None) == number
        )

    return matches


def lose(history: History) -> None:
    history.drop(of(Stored, 4))
    history.drop(of(Received, 4))


def misplace(history: History) -> None:
    history.drop(of(SendOk, 4))
    history.add("producer", SendOk(TOPIC, "p", 4, (0, 1, 77, -1)))


def invent(history: History) -> None:
    history.drop(of(SendInvoked, 4))


def invent_letter(history: History) -> None:
    history.add("reader", Stored(LETTERS, (-1, 9, 1, -1), "q", 0, "", 0))


def store_refused(history: History) -> None:
    history.drop(of(SendOk, 4))
    history.add("producer", SendFailed(TOPIC, "p", 4, "MessageTooBig"))


def store_twice(history: History) -> None:
    history.add("reader", history.stored(4, (0, 2, 0, -1)))


def change_bytes(history: History) -> None:
    history.drop(of(SendInvoked, 4))
    history.add("producer", history.invoked(4)._replace(digest=1))


def store_out_of_order(history: History) -> None:
    history.add("reader", history.stored(UNKNOWN, (1, 2, 0, -1)))


def split_key(history: History) -> None:
    history.add("reader", history.stored(UNKNOWN, (1, 2, 0, -1)))


def give_to_nobody(history: History) -> None:
    history.drop(lambda o: of(Received, 4)(o) and getattr(o, "subscription", "") == "keyed")


def give_what_is_not_stored(history: History) -> None:
    history.add("c-shared", history.received(UNKNOWN, "shared"))


def give_other_bytes(history: History) -> None:
    history.add("c-keyed", history.received(4, "keyed")._replace(digest=1))


def give_out_of_order(history: History) -> None:
    _move_to_the_end(history, "failover", 1)


def give_out_of_key_order(history: History) -> None:
    _move_to_the_end(history, "keyed", 1)


def _move_to_the_end(history: History, subscription: str, number: int) -> None:
    moved = history.received(number, subscription)
    operations = history.by_process[f"c-{subscription}"]
    operations.remove(moved)
    operations.insert(len(operations) - (subscription == "failover"), moved)


def give_again(history: History) -> None:
    history.add("c-shared", history.received(2, "shared"))


def give_again_behind_cumulative(history: History) -> None:
    history.add("z-other", ConsumerOpening(TOPIC, "failover"))
    history.add("z-other", history.received(1, "failover"))


def leave_over(history: History) -> None:
    history.add("run", Remains(TOPIC, "shared", place(4)))


def fall_back(history: History) -> None:
    history.add("run", MarkDeleted(TOPIC, "failover", 1, 1, 7, 2**62))


def come_early(history: History) -> None:
    history.add("c-keyed", history.received(DELAYED, "keyed")._replace(wall_ms=DUE_MS - 30))


def keep_from_letters(history: History) -> None:
    history.drop(lambda o: isinstance(o, Stored) and o.topic == LETTERS)


def move_good_one(history: History) -> None:
    history.add("reader", Stored(LETTERS, (-1, 9, 1, -1), "p", 4, "a", digest_of(data(4))))


def leave_out_behind_a_seek(history: History) -> None:
    seek_all(history, skipped=4)


def seek_all(history: History, skipped: int = -1) -> None:
    """Seek the shared subscription to its first message: all of it comes again but what is skipped."""
    history.add("c-shared", SeekInvoked(TOPIC, "shared", 1, None))
    history.add("c-shared", SeekOk(TOPIC, "shared", 1, None))
    for number in set(range(8)) - {UNKNOWN, skipped}:
        history.add("c-shared", history.received(number, "shared"))


def seek_past(history: History, subscription: str, number: int, passed: int) -> None:
    """Seek forward to a message while one before that was given to nobody."""
    history.drop(lambda o: of(Received, passed)(o) and getattr(o, "subscription", "") == subscription)
    history.drop(lambda o: of(AcknowledgeOk, passed)(o) and getattr(o, "subscription", "") == subscription)
    history.add(f"c-{subscription}", SeekInvoked(TOPIC, subscription, 1, place(number)))
    history.add(f"c-{subscription}", SeekOk(TOPIC, subscription, 1, place(number)))


def read_whole(history: History, reader: str = "reads") -> None:
    history.add("z-reads", ReadBegan(TOPIC, reader))
    for number in sorted(set(range(8)) - {UNKNOWN}, key=place):
        history.add("z-reads", read_row(number, reader))
    history.add("z-reads", ReadEnded(TOPIC, reader))


def read_row(number: int, reader: str = "reads") -> ReadRow:
    return ReadRow(TOPIC, reader, place(number), "p", number, digest_of(data(number)))


def read_what_is_not_there(history: History) -> None:
    history.add("z-reads", read_row(UNKNOWN))


def read_with_a_gap(history: History) -> None:
    history.add("z-reads", read_row(1))
    history.add("z-reads", read_row(5))


def read_too_little(history: History) -> None:
    read_whole(history)
    history.drop(lambda o: isinstance(o, ReadRow) and o.number == DELAYED)


def write_behind_a_fence(history: History) -> None:
    history.add("producer", ProducerOpened(TOPIC, "p", 1))
    history.add("producer", ProducerOpened(TOPIC, "q", 2))
    history.add("producer", SendInvoked(TOPIC, "q", 0, "", 0, 0, False))
    history.by_process["reader"].insert(0, Stored(TOPIC, (0, 0, 0, -1), "q", 0, "", 0))


def hear_what_nobody_sent(history: History) -> None:
    history.add("c-lossy", Heard("lossy", "s", "p", 0, 0))


def heard(history: History, *numbers: int) -> None:
    history.add("run", DeclaredTopic("lossy", None, 0, False))
    for number in numbers:
        history.add("producer", SendInvoked("lossy", "p", number, "", number, 0, False))
        history.add("c-lossy", Heard("lossy", "s", "p", number, number))


def count_down(history: History) -> None:
    for redeliveries in (2, 1):
        history.add("c-keyed", history.received(3, "keyed")._replace(redeliveries=redeliveries))


def forget_a_change(history: History) -> None:
    change(history, 1, 2, found=1)


def find_what_nobody_set(history: History) -> None:
    change(history, 1, 2, found=3)


def change(history: History, *values: int, found: int) -> None:
    """Confirmed changes of one subject, and what is found of it."""
    for value in values:
        history.add("admin", ChangeInvoked("ttl", value))
        history.add("admin", ChangeOk("ttl", value))
    history.add("run", ValueFound("ttl", found))


PLANTED: dict[str, Callable[[History], None]] = {
    "confirmed messages that are not in the log": lose,
    "messages that are not where their receipts said": misplace,
    "messages of the log that nobody sent": invent,
    "dead letters that are not in the log they are from": invent_letter,
    "messages in the log although their sending was refused": store_refused,
    "messages stored more than once": store_twice,
    "messages whose bytes changed on their way into the log": change_bytes,
    "messages of a producer out of order in the log": store_out_of_order,
    "keys whose messages are in several partitions": split_key,
    "messages that a subscription gave to nobody": give_to_nobody,
    "deliveries of what is not in the log": give_what_is_not_stored,
    "deliveries of other bytes than the log has": give_other_bytes,
    "messages that came to a consumer out of their partition's order": give_out_of_order,
    "messages that came to a consumer out of their key's order": give_out_of_key_order,
    "messages that came after the receipt of their acknowledgment": give_again,
    "messages that came after the receipt of a cumulative acknowledgment": give_again_behind_cumulative,
    "messages left over although their acknowledgment had a receipt": leave_over,
    "mark-delete positions before what had been acknowledged": fall_back,
    "delayed messages that came early": come_early,
    "messages that fail and are not among the dead letters": keep_from_letters,
    "good messages among the dead letters": move_good_one,
    "messages behind a seek that were not given again": leave_out_behind_a_seek,
    "rows that a read gave and the log has not": read_what_is_not_there,
    "reads with a gap, or out of order": read_with_a_gap,
    "confirmed messages that a later read did not give": read_too_little,
    "messages of a fenced producer behind its successor's": write_behind_a_fence,
    "confirmed changes of the catalog that are not there": forget_a_change,
    "values of the catalog that nobody set": find_what_nobody_set,
    "non-persistent messages that nobody sent": hear_what_nobody_sent,
    "redelivery counts that fell between two deliveries to a consumer": count_down,
}


def test_good_history(tmp_path: Path) -> None:
    verdict = History().verdict(tmp_path)
    assert not verdict.violations, verdict
    assert verdict.operations["Stored"] == 8
    assert verdict.operations["Received"] == 3 * 7


@pytest.mark.parametrize("rule", RULES)
def test_planted_violation(tmp_path: Path, rule: str) -> None:
    history = History()
    PLANTED[rule](history)
    found = {violation.rule for violation in history.verdict(tmp_path).violations}
    assert rule in found, f"found only {found}"


def test_a_change_that_was_lost_altogether_is_missed(tmp_path: Path) -> None:
    history = History()
    change(history, 1, 2, found=0)
    (violation,) = history.verdict(tmp_path).violations
    assert violation.rule == "confirmed changes of the catalog that are not there"


def test_a_change_without_a_receipt_may_take_effect_late_or_never(tmp_path: Path) -> None:
    history = History()
    history.add("admin", ChangeInvoked("ttl", 1))
    change(history, 2, 3, found=1)
    history.add("admin", ChangeInvoked("ttl", 4))
    history.add("run", ValueFound("ttl", 3))
    history.add("run", ValueFound("ttl", 4))
    assert not history.verdict(tmp_path).violations


def test_unknown_send_may_be_stored(tmp_path: Path) -> None:
    history = History()
    reader = history.by_process["reader"]
    reader.insert(reader.index(history.stored(4)) + 1, history.stored(UNKNOWN))
    for subscription in ("shared", "failover", "keyed"):
        operations = history.by_process[f"c-{subscription}"]
        operations.insert(
            operations.index(history.received(4, subscription)) + 1, history.received(UNKNOWN, subscription)
        )
    assert not history.verdict(tmp_path).violations


def test_redelivery_is_no_violation_before_the_receipt(tmp_path: Path) -> None:
    history = History()
    history.drop(lambda o: isinstance(o, AcknowledgeOk) and o.place == place(2))
    history.add("c-shared", history.received(2, "shared"))
    # The batch comes again whole: the acknowledgment of one of its messages does not hold alone.
    history.add("c-shared", history.received(0, "shared"))
    history.add("c-keyed", history.received(3, "keyed"))
    assert not history.verdict(tmp_path).violations


@pytest.mark.parametrize(("subscription", "number"), [("failover", 1), ("shared", 2)])
def test_what_waits_in_a_queue_when_another_acknowledges_it_may_be_shown(
    tmp_path: Path, subscription: str, number: int
) -> None:
    history = History()
    # Its opening is in the first journal that is written, so before all acknowledgments.
    history.by_process = {"a-other": [ConsumerOpening(TOPIC, subscription)], **history.by_process}
    assert not history.verdict(tmp_path).violations
    note(Journal(tmp_path / "a-other.journal"), history.received(number, subscription))
    assert not judge(tmp_path).violations
    note(Journal(tmp_path / "z-later.journal"), ConsumerOpening(TOPIC, subscription))
    note(Journal(tmp_path / "z-later.journal"), history.received(number, subscription))
    assert len(judge(tmp_path).violations) == 1


def test_what_had_been_acknowledged_may_be_told_as_it_is(tmp_path: Path) -> None:
    history = History()
    history.add("run", MarkDeleted(TOPIC, "failover", 1, 1, 8, 2**62))
    history.add("run", MarkDeleted(TOPIC, "failover", 1, 1, 3, 0))
    history.add("run", Remains(TOPIC, "keyed", place(4)))
    assert not history.verdict(tmp_path).violations


def test_duplicate_of_a_successor_has_no_place_of_its_own(tmp_path: Path) -> None:
    history = History()
    history.add("producer-2", history.invoked(4))
    history.add("producer-2", SendOk(TOPIC, "p", 4, None))
    assert not history.verdict(tmp_path).violations


def test_what_comes_again_behind_a_seek_is_no_violation(tmp_path: Path) -> None:
    history = History()
    seek_all(history)
    history.add("run", Remains(TOPIC, "shared", place(4)))
    history.add("run", MarkDeleted(TOPIC, "shared", 1, 1, 3, 0))
    assert not history.verdict(tmp_path).violations


@pytest.mark.parametrize(
    ("subscription", "target", "goes_back", "is_broken"),
    [
        ("shared", 4, False, False),
        ("shared", 4, True, True),
        ("shared", 0, False, True),
        ("failover", 4, False, True),
    ],
)
def test_a_seek_past_what_is_given_in_no_order_leaves_it_out(
    tmp_path: Path, subscription: str, target: int, goes_back: bool, is_broken: bool
) -> None:
    history = History()
    seek_past(history, subscription, target, passed=2)
    if goes_back:
        history.add("c-shared", SeekInvoked(TOPIC, subscription, 2, None))
        history.add("c-shared", SeekOk(TOPIC, subscription, 2, None))
    rules = {violation.rule for violation in history.verdict(tmp_path).violations}
    assert ("messages that a subscription gave to nobody" in rules) == is_broken


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_acknowledgment_behind_a_seek_holds_again(tmp_path: Path, is_answered: bool) -> None:
    history = History()
    seek_all(history)
    if not is_answered:  # then it may take effect at any time
        history.drop(lambda o: isinstance(o, SeekOk))
    history.add("c-shared", AcknowledgeOk(TOPIC, "shared", place(1), 1))
    history.add("c-shared", history.received(1, "shared"))
    found = [violation.rule for violation in history.verdict(tmp_path).violations]
    assert found == (["messages that came after the receipt of their acknowledgment"] if is_answered else [])


def test_whole_reads_non_persistent_messages_and_fencing_that_are_right(tmp_path: Path) -> None:
    history = History()
    read_whole(history, "bulk-1")
    read_whole(history, "bulk-2")
    heard(history, 1, 2, 5)
    history.add("producer", ProducerOpened(TOPIC, "p", 1))
    assert not history.verdict(tmp_path).violations


@pytest.mark.parametrize(("clock_ms", "count"), [(DUE_MS + 99, 1), (DUE_MS + 100, 0)])
def test_what_has_expired_need_not_come(tmp_path: Path, clock_ms: int, count: int) -> None:
    history = History()
    history.drop(lambda o: isinstance(o, DeclaredTopic) and o.topic == TOPIC)
    history.drop(
        lambda o: of(Stored, 4)(o) or (of(Received, 4)(o) and getattr(o, "subscription", "") == "keyed")
    )
    history.add("run", DeclaredTopic(TOPIC, None, 100))
    reader = history.by_process["reader"]
    expired = history.stored(4)._replace(published_ms=DUE_MS)
    reader.insert(next(i for i, each in enumerate(reader) if place(4) < getattr(each, "place", ())), expired)
    history.add("run", ClockShown(clock_ms))
    assert len(history.verdict(tmp_path).violations) == count


def test_clocks_that_were_set_forward(tmp_path: Path) -> None:
    history = History()
    come_early(history)
    assert not history.verdict(tmp_path, clock_error_ms=30).violations


def test_torn_last_line_is_not_read(tmp_path: Path) -> None:
    History().verdict(tmp_path)
    with open(tmp_path / "producer.journal", "ab") as journal:
        journal.write(b'[1, "SendOk", "ord')
    assert not judge(tmp_path).violations


@pytest.mark.parametrize(("plant", "code"), [(None, 0), (lose, 1)])
def test_command_judges_again(tmp_path: Path, plant: Callable[[History], None] | None, code: int) -> None:
    history = History()
    if plant is not None:
        plant(history)
    first = str(history.verdict(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.history", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout == first + "\n"


def test_command_without_a_history(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.history", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "name the directory of a recorded run" in done.stderr


def test_payloads_name_their_source() -> None:
    assert source_of(payload("p-1", 7, 300)) == ("p-1", 7)
    assert payload("p-1", 7, 300) == payload("p-1", 7, 300)
    with pytest.raises(ValueError):
        source_of(b"something else")
