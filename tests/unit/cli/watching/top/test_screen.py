"""What is drawn, in terminals of all sizes."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from pulsar_ray.cli.watching.top.columns import COLUMNS, View
from pulsar_ray.cli.watching.top.keys import Key
from pulsar_ray.cli.watching.top.screen import Figures, draw, row_names, table_rows
from pulsar_ray.cli.watching.top.state import TopState
from pulsar_ray.model.short_numbers import age, count, size
from tests.unit.cli.watching.top.answers import answer, overview, topic_row

ORDERS = topic_row(
    "orders", msgRateIn=1234.5, msgRateOut=999.0, msgBacklog=123_456, oldestBacklogMessageAgeSeconds=90
)
BILLS = topic_row("bills", msgRateIn=2.5, msgBacklog=7, problem="billing: no consumer", unackedMessages=3)
ASLEEP = topic_row("old", state="asleep", msgBacklog=5, oldestBacklogMessageAgeSeconds=200_000)
ANSWER = answer(BILLS, ORDERS, ASLEEP)


def lines(state: TopState, found: dict[str, Any], width: int = 80, height: int = 24, **how: Any) -> list[str]:
    return draw(state, Figures(found, **how), width, height).plain.split("\n")


def _line_of(name: str, shown: list[str]) -> str:
    (line,) = [line for line in shown if line.startswith(name)]
    return line.rstrip()


def test_topics_in_eighty_columns() -> None:
    shown = lines(TopState(), ANSWER)
    assert len(shown) == 24
    assert all(cell_len(line) <= 80 for line in shown)
    assert "topics 3 running, 12 asleep" in shown[1]
    assert "disk 20% (80GB free)" in shown[1]
    order = [line.split()[0] for line in shown[4:7]]
    assert order == ["orders", "bills", "old"], "sorted by backlog"
    titles = shown[3].split()
    values = dict(zip(titles, _line_of("orders", shown).split(), strict=True))
    assert values == {
        "TOPIC": "orders", "IN/s": "1234", "OUT/s": "999", "BACKLOG*": "123.5k", "AGE": "1m", "UNACK": "0",
        "SUBS": "1", "CONS": "1", "STATE": "running",
    }  # fmt: skip
    assert "2d" in _line_of("old", shown)
    assert shown[-1].startswith("q quit")


def test_what_is_wrong_with_the_selected_topic_stands_below() -> None:
    state = TopState()
    state.press(Key.DOWN, row_names(state, ANSWER), 10)
    assert lines(state, ANSWER)[-1] == "billing: no consumer"
    # A wide terminal has a column for it.
    assert "billing: no consumer" in _line_of("bills", lines(TopState(), ANSWER, width=180))


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("width", [1, 20, 40, 80, 100, 131, 300])
@pytest.mark.parametrize("height", [1, 2, 5, 24, 100])
def test_no_size_breaks_it(view: View, width: int, height: int) -> None:
    state = TopState(topic="t" if view is not View.TOPICS else "")
    state.subscription = "s" if view is View.CONSUMERS else ""
    found = answer(*(topic_row(f"a-very-long-name-{number}" * 3) for number in range(200)))
    found |= {"topic": state.topic, "subscription": state.subscription}
    found["subscriptions"] = [_subscription("s"), _subscription("日本" * 30)]
    found["consumers"] = [_consumer("c")]
    found["hashes"] = [_hash(number) for number in range(10)]
    for key in ("?", "x", Key.END, "s", "r"):
        shown = lines(state, found, width, height)
        assert len(shown) == height
        assert all(cell_len(line) <= width for line in shown)
        state.press(key, row_names(state, found), 3)


def _subscription(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "type": "Key_Shared", "consumerCount": 2, "msgRateOut": 0.0, "msgRateRedeliver": 0.0,
        "unackedMessages": 12, "msgDelayed": 0, "msgBacklog": 40, "oldestAgeSeconds": 61.0, "blocked": "",
        **fields,
    }  # fmt: skip


def _consumer(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "consumerName": name, "msgRateOut": 3.0, "messageAckRate": 1.0, "msgRateRedeliver": 0.0,
        "unackedMessages": 12, "availablePermits": 100, "drainingHashesCount": 1, "blocked": "", **fields,
    }  # fmt: skip


def _hash(number: int) -> dict[str, Any]:
    return {
        "hash": number,
        "waitingMessages": 4,
        "blockedMs": 65_000,
        "reason": f"moved to b and still drains at a ({number + 1} unacknowledged)",
    }


def test_subscriptions_with_what_blocks_them() -> None:
    topic = "persistent://public/default/orders"
    state = TopState(topic=topic)
    found = {
        **ANSWER,
        "topic": topic,
        "subscriptions": [_subscription("a"), _subscription("b", blocked="no consumer", msgBacklog=41)],
    }
    shown = lines(state, found)
    assert topic in shown[2]
    assert [line.split()[0] for line in shown[4:6]] == ["b", "a"]
    assert _line_of("b", shown).endswith("no consumer")
    assert _line_of("a", shown).split() == ["a", "Key_Shared", "2", "0", "12", "40", "1m"]


def test_consumers_and_the_keys_that_wait() -> None:
    topic = "persistent://public/default/orders"
    state = TopState(topic=topic, subscription="s")
    reason = "hash 0: moved to b and still drains at a (1 unacknowledged)"
    found = {
        **ANSWER,
        "topic": topic,
        "subscription": "s",
        "consumers": [_consumer("a", blocked="is full"), _consumer("b")],
        "reason": reason,
        "hashes": [_hash(number) for number in range(8)],
        "hashesNotShown": 3,
    }
    shown = lines(state, found, width=160)
    assert f"{topic} -> s  {reason}" in shown[2]
    assert _line_of("a", shown).endswith("is full")
    blocked = shown.index("BLOCKED HASH  WAITING  SINCE  WHY")
    assert shown[blocked + 1].split()[:3] == ["0", "4", "1m"]
    assert "... and 5 more" in shown[-2]


def test_figures_of_another_place_are_not_shown() -> None:
    state = TopState(topic="persistent://public/default/orders")
    found = {**ANSWER, "topic": "persistent://public/default/bills", "subscriptions": [_subscription("a")]}
    assert table_rows(state, found) == []
    assert table_rows(TopState(topic="t"), {**ANSWER, "topic": "t", "missing": "gone"}) == []
    assert "gone" in lines(TopState(topic="t"), {**ANSWER, "topic": "t", "missing": "gone"})[2]


def test_before_the_first_answer_and_without_a_broker() -> None:
    assert "connecting" in lines(TopState(), {})[0]
    assert "no broker runs" in lines(TopState(), {}, problem="no broker runs")[0]
    gone = lines(TopState(), ANSWER, problem="it has ended", age_s=75)
    assert "it has ended, figures of 1m ago" in gone[0]
    assert _line_of("orders", gone), "the last figures stay"
    assert "paused" in lines(TopState(is_paused=True), ANSWER)[0]


def test_names_do_nothing_to_the_terminal() -> None:
    nasty = topic_row('x"\n\x1b[2J\ttab')
    state = TopState()
    shown = "".join(lines(state, answer(nasty)))
    assert not set("\x1b\t\r") & set(shown)
    found = {**answer(), "topic": "t", "subscriptions": [_subscription("a\x1b]0;b\x07\nc")]}
    assert not set("\x1b\x07") & set("".join(lines(TopState(topic="t"), found)))
    assert "\x1b" not in "".join(lines(TopState(filter="\x1b[31m"), ANSWER))


def test_disks_partitions_and_restarts_that_matter_stand_above() -> None:
    stores = [
        {"host": "a", "path": "/a", "freeBytes": 10**9, "totalBytes": 10**11, "diskState": "low"},
        {"host": "b", "path": "/b", "error": "away, last seen on b, with 3 partitions"},
        {"host": "c", "path": "/c", "freeBytes": 1, "totalBytes": 1, "remoteLagSeconds": 0.25},
        {"host": "d", "path": "/d", "freeBytes": 1, "totalBytes": 1, "remoteLagSeconds": None},
    ]
    found = answer()
    found["overview"] = overview(stores=stores, partitionsAway=3, restarts=2, topicsNotShown=9800)
    shown = lines(TopState(), found, width=240)
    assert "3 partitions away" in shown[0]
    assert "2 restarts" in shown[0]
    assert "disk 99% LOW (1.0GB free)" in shown[1]
    assert "b: away, last seen on b" in shown[1]
    assert "remote lag 0.2 s" in shown[1]
    assert "does not ship" in shown[1]
    assert "9,800 more" in shown[2]


def test_each_column_sorts() -> None:
    for view, columns in COLUMNS.items():
        state = TopState(topic="" if view is View.TOPICS else "t")
        state.subscription = "s" if view is View.CONSUMERS else ""
        found = {**ANSWER, "topic": state.topic, "subscription": state.subscription}
        found["subscriptions"] = [_subscription("a"), _subscription("b", msgBacklog=1)]
        found["consumers"] = [_consumer("a"), _consumer("b", unackedMessages=1)]
        for column in columns:
            state.sort[view] = column.name
            forward = table_rows(state, found)
            assert [column.value(row) for row in forward] == sorted(
                map(column.value, forward), reverse=column.is_number
            )
            state.is_reversed[view] = True
            backward = [column.value(row) for row in table_rows(state, found)]
            assert backward == sorted(backward, reverse=not column.is_number)
            state.is_reversed[view] = False


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (7, "7"), (99_999, "99999"), (123_456, "123.5k"), (5e9, "5.0G")],
)
def test_counts_are_short(number: float | None, text: str) -> None:
    assert count(number) == text


def test_spans_and_sizes_are_short() -> None:
    assert [age(s) for s in (None, -1, 0, 59, 60, 3600, 86_400, 10**9)] == [
        "-", "-", "0s", "59s", "1m", "1h", "1d", "999d",
    ]  # fmt: skip
    assert [size(b) for b in (None, 0, 999, 1000, 12_345, 10**12)] == [
        "-", "0B", "999B", "1.0kB", "12kB", "1TB",
    ]  # fmt: skip
