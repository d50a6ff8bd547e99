"""A link by itself: its actor is a stub that the test lets answer, refuse, and lose what it was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerGone,
    ConsumerBusy,
    Moved,
    NotConnected,
    PulsarException,
    SessionLost,
    SubscriptionNotFound,
    Timeout,
    WrongNode,
)
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import Packet, decode_packet
from pulsar_ray.session.requests import (
    Call,
    Done,
    Failed,
    Leave,
    MovedNotice,
    Pong,
    Request,
    decode_request,
    encode_request,
)
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import actor_link
from pulsar_ray.transport.actor_link import ActorLink, Phase
from pulsar_ray.transport.cluster import AttachReply, Cluster

DEADLINE_S = 20.0


def deadline(seconds: float = DEADLINE_S) -> float:
    return time.monotonic() + seconds


def packets_of(*requests: Request) -> list[Packet]:
    return [packet_of(encode_request(request)) for request in requests]


class StubConnection:
    """A carrier whose packets the test reads in `sent`, and answers by `receive`."""

    kind = "stub"
    has_unread = False

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.sent: list[Any] = []
        self.is_lost = False
        self.is_closed = False
        self.refusal: Exception | None = None
        self.waits = 0
        """How often a caller has waited here; each time the carrier has nothing for it."""

    def send(self, buffers: Sequence[Any], *, waits: bool = False) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(decode_request(packet_of(buffers)))

    def room(self, _length: int) -> None: ...

    def keep_alive(self, _packet: bytes) -> None: ...

    def write_at_once(self) -> None: ...

    def wait(self, _awaited: Any, _deadline: float) -> bool:
        self.waits += 1
        return False

    def close(self) -> None:
        self.is_closed = True

    def receive(self, *requests: Request) -> None:
        self.handler.on_packets(self, packets_of(*requests))

    def lose(self) -> None:
        self.is_lost = True
        self.handler.on_lost(self, SessionLost("cut"))


def packet_of(buffers: Sequence[Any]) -> Packet:
    return decode_packet(b"".join(bytes(buffer) for buffer in buffers))


class Actor:
    """The actor as the cluster shows it: attaches with `refusals` first, in turn, and then for good."""

    def __init__(self, *refusals: PulsarException) -> None:
        self.refusals = list(refusals)
        self.attachments = 0
        self.may_attach = threading.Event()
        self.may_attach.set()
        self.connections: list[StubConnection] = []
        self.forgotten: list[str] = []
        self.starting: Callable[[], bool] = lambda: False

    def is_starting(self, _address: str) -> bool:
        return self.starting()

    def forget(self, address: str) -> None:
        self.forgotten.append(address)

    def attach(
        self, _address: str, _client_id: str, *, want_tcp: bool, attempt: int, timeout_s: float
    ) -> AttachReply:
        del want_tcp, attempt, timeout_s
        assert self.may_attach.wait(DEADLINE_S)
        self.attachments += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return AttachReply(1, self.attachments, b"", 1, None, None, ("", ""), "", 1, {})

    def open(
        self, _cluster: Any, _address: str, _attached: Any, _transport: str, handler: Any, **_: Any
    ) -> Any:
        self.connections.append(StubConnection(handler))
        return self.connections[-1]

    @property
    def connection(self) -> StubConnection:
        return self.connections[-1]


class Endpoint:
    """Notes what its link tells it."""

    awaits_packets = False
    needs_actor = False
    awaited_consumer = None

    def __init__(self) -> None:
        self.told: list[Any] = []

    def reopen(self, attached: AttachReply) -> None:
        self.told.append(("reopen", attached.attachment))

    def send_last(self) -> None:
        self.told.append("last")

    def on_detached(self) -> None:
        self.told.append("detached")

    def on_refused(self, error: PulsarException) -> None:
        self.told.append(type(error))

    def on_request(self, request: Any, body: memoryview) -> None:
        self.told.append(request)

    def on_receipts(self, rows: Any) -> None:
        self.told.append(list(rows))


MakeLink = Callable[..., ActorLink]


@pytest.fixture
def link_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLink]:
    links: list[ActorLink] = []
    monkeypatch.setattr(actor_link, "FIRST_BACKOFF_S", 0.001)

    def make(actor: Actor, **named: Any) -> ActorLink:
        monkeypatch.setattr(actor_link, "open_connection", actor.open)
        cluster = cast("Cluster", actor)
        links.append(ActorLink(cluster, "a", lambda: "a", "me", "ray", pushes=True, **named))
        return links[-1]

    yield make
    for link in links:
        link.close()


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except PulsarException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def ask(link: ActorLink) -> Any:
    return link.request(lambda rid: Call(rid, 0, "m", {}), deadline())


def test_all_who_wait_for_the_link_share_one_attempt(link_to: MakeLink) -> None:
    actor = Actor()
    actor.may_attach.clear()
    link = link_to(actor)
    waiting = [in_thread(lambda: link.ensure_attached(deadline())) for _ in range(4)]
    actor.may_attach.set()
    for thread, outcome in waiting:
        thread.join(DEADLINE_S)
        assert outcome[0].attachment == 1
    assert actor.attachments == 1
    assert link.is_attached


def test_refusals_that_may_pass_are_waited_out(link_to: MakeLink) -> None:
    actor = Actor(NotConnected("restarting"), NotConnected("restarting"))
    assert link_to(actor).ensure_attached(deadline()).attachment == 3


@pytest.mark.parametrize("refusal", [ConsumerBusy("another one"), WrongNode("its node is away")])
def test_refusals_that_do_not_pass_soon_are_raised_at_once(link_to: MakeLink, refusal: Any) -> None:
    link = link_to(Actor(refusal))
    with pytest.raises(type(refusal)):
        link.ensure_attached(deadline())
    wait_until(lambda: link.last_error is not None)
    assert (link.absence is not None) == isinstance(refusal, WrongNode)


def test_the_deadline_raises_what_attaching_met_last(link_to: MakeLink) -> None:
    link = link_to(Actor(*[NotConnected("the actor is restarting") for _ in range(10_000)]))
    with pytest.raises(NotConnected, match="restarting"):
        link.ensure_attached(deadline(0.05))


def test_an_actor_that_is_nowhere_until_the_deadline_may_be_on_a_node_that_is_gone(link_to: MakeLink) -> None:
    link = link_to(Actor(*[Moved("no such actor") for _ in range(10_000)]))
    with pytest.raises(WrongNode, match="no process of it was found"):
        link.ensure_attached(deadline(0.05))


def test_answers_reach_who_asked_and_everything_else_its_endpoint(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    link.ensure_attached(deadline())
    answers: list[Any] = []
    for _ in range(2):
        link.request_async(lambda rid: Call(rid, 0, "m", {}), lambda *answer: answers.append(answer))
    first, second = (request[0] for request in actor.connection.sent)
    actor.connection.receive(
        Done(second, "b"), Pong(0), Failed(first, "ConsumerBusy", "no", {}), Done(99, "?")
    )
    assert answers[0] == ("b", None)
    assert answers[1][0] is None
    assert isinstance(answers[1][1], ConsumerBusy)


def test_a_lost_carrier_fails_what_was_asked_and_then_everybody_opens_again(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    answers: list[Any] = []
    link.request_async(lambda rid: Call(rid, 0, "m", {}), lambda *answer: answers.append(answer))
    first = actor.connection
    first.lose()
    assert first.is_closed
    assert isinstance(answers[0][1], SessionLost)
    wait_until(lambda: endpoint.told == ["detached", ("reopen", 2)])
    first.lose()
    assert link.carrier is actor.connection
    assert link.is_attached, "the loss of an earlier carrier does not concern this one"


def test_nobody_attaches_again_before_all_endpoints_know_of_the_loss(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    attached_meanwhile: list[bool] = []

    class Asking(Endpoint):
        def on_detached(self) -> None:
            # As another thread that wants to send, just now.
            in_thread(link.begin_attaching)[0].join(DEADLINE_S)
            attached_meanwhile.append(link._phase is Phase.ATTACHING or link.is_attached)
            super().on_detached()

    endpoint = Asking()
    link.add_endpoint(7, endpoint)
    actor.connection.lose()
    assert attached_meanwhile == [False]
    wait_until(lambda: ("reopen", 2) in endpoint.told)


def test_who_asks_for_a_link_just_when_it_is_lost_and_nobody_else_uses_it_gets_it(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    asking: list[tuple[threading.Thread, list[Any]]] = []

    def closes() -> None:
        asking.append(in_thread(lambda: link.ensure_attached(deadline())))
        wait_until(lambda: link._state._waiters, what="the caller waits")  # type: ignore[attr-defined]

    actor.connection.close = closes  # type: ignore[method-assign]
    actor.connection.lose()
    ((thread, outcome),) = asking
    thread.join(DEADLINE_S / 2)
    assert [reply.attachment for reply in outcome] == [2]


def test_a_request_is_made_again_over_the_next_carrier(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    thread, outcome = in_thread(lambda: ask(link))
    wait_until(lambda: len(actor.connections) == 1 and bool(actor.connection.sent))
    actor.connection.lose()
    wait_until(lambda: len(actor.connections) == 2 and bool(actor.connection.sent))
    actor.connection.receive(Done(actor.connection.sent[0][0], "answer"))
    thread.join(DEADLINE_S)
    assert outcome == ["answer"]


def test_a_carrier_that_cannot_be_written_is_lost(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    broken = actor.connection
    broken.refusal = OSError("broken pipe")
    assert not link.send(list(encode_request(Pong(0))))
    wait_until(lambda: endpoint.told == ["detached", ("reopen", 2)])
    assert not link.send(list(encode_request(Pong(0))), only_on=broken)
    assert link.send(list(encode_request(Pong(0))), only_on=link.carrier)


def test_endpoints_of_what_was_deleted_are_refused(link_to: MakeLink) -> None:
    actor = Actor(*[SubscriptionNotFound("deleted")] * 100)
    link = link_to(actor)
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    with pytest.raises(SubscriptionNotFound):
        link.ensure_attached(deadline())
    wait_until(lambda: SubscriptionNotFound in endpoint.told)


def test_closing_wakes_who_waits_for_the_link_and_for_an_answer(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    asking, asked = in_thread(lambda: ask(link))
    wait_until(lambda: len(actor.connections) == 1 and bool(actor.connection.sent))
    link.close()
    asking.join(DEADLINE_S)
    assert isinstance(asked[0], AlreadyClosed)
    assert actor.connection.is_closed
    with pytest.raises(AlreadyClosed):
        link.ensure_attached(deadline())
    assert not link.wait(Completion(), deadline())


def test_a_link_of_a_process_that_ends_leaves_behind_its_endpoints_and_attaches_no_more(
    link_to: MakeLink,
) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    link.leave()
    assert endpoint.told == ["last"]
    assert [type(request) for request in actor.connection.sent] == [Leave]
    before = link.has_left, link.is_over
    actor.connection.lose()
    assert (before, link.has_left, link.is_over) == ((False, False), True, True)
    link.begin_attaching()
    with pytest.raises(AlreadyClosed):
        link.ensure_attached(deadline())
    assert not link.attaches(deadline())
    assert not link.wait(Completion(), deadline())
    assert endpoint.told == ["last"], "nothing is called back while the interpreter ends"
    assert len(actor.connections) == 1


def test_a_link_ended_because_the_process_left_ray_says_so(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    link.end(BrokerGone("left"))
    wait_until(lambda: actor.connection.is_closed)
    assert [type(request) for request in actor.connection.sent] == [Leave]


def test_a_caller_that_waits_turns_to_each_new_carrier_and_sleeps_between(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.add_endpoint(1, Endpoint())
    link.ensure_attached(deadline())
    event = Completion()
    waiting, outcome = in_thread(lambda: link.wait(event, deadline()))
    first = actor.connection
    wait_until(lambda: first.waits)
    first.lose()
    wait_until(lambda: len(actor.connections) == 2 and actor.connection.waits)
    event.set()
    waiting.join(DEADLINE_S)
    assert outcome == [True]
    assert [connection.waits for connection in actor.connections] == [1, 2], "it looks only behind a change"


def test_a_link_that_ended_says_why_from_then_on(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    link.end(NotConnected("the broker has ended"))
    assert endpoint.told == ["detached", NotConnected]
    with pytest.raises(NotConnected, match="the broker has ended"):
        ask(link)


def test_a_carrier_that_comes_after_the_end_is_closed(link_to: MakeLink) -> None:
    actor = Actor()
    actor.may_attach.clear()
    link = link_to(actor)
    link.begin_attaching()
    link.close()
    actor.may_attach.set()
    wait_until(lambda: len(actor.connections) == 1 and actor.connection.is_closed)
    assert not link.is_attached


def test_an_answer_that_does_not_come_is_a_timeout(link_to: MakeLink) -> None:
    link = link_to(Actor())
    with pytest.raises(Timeout, match="did not answer"):
        link.request(lambda rid: Call(rid, 0, "m", {}), deadline(0.05))


def parked_link(link_to: MakeLink, actor: Actor, **named: Any) -> tuple[ActorLink, Endpoint]:
    """A link whose actor has gone to sleep, and an endpoint that does not need it."""
    link = link_to(actor, **named)
    endpoint = Endpoint()
    link.add_endpoint(7, endpoint)
    link.ensure_attached(deadline())
    wait_until(lambda: endpoint.told)
    with pytest.raises(SessionLost):
        actor.connection.receive(MovedNotice("nobody used it", is_asleep=True))
    actor.connection.lose()
    return link, endpoint


def test_a_link_is_parked_while_nothing_needs_its_actor(link_to: MakeLink) -> None:
    actor = Actor()
    parked: list[ActorLink] = []
    link, endpoint = parked_link(link_to, actor, on_parked=parked.append)
    assert link.is_parked
    assert link.is_asleep
    assert parked == [link]
    assert endpoint.told == [("reopen", 1), "detached"]
    assert actor.attachments == 1
    assert actor.forgotten == ["a"], "the next actor of the name has another handle"
    link.wake()
    wait_until(lambda: ("reopen", 2) in endpoint.told)
    assert [link.is_parked, link.is_asleep] == [False, False]
    link.wake()
    assert actor.attachments == 2


def test_an_endpoint_that_needs_the_actor_wakes_it_at_once(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor, on_parked=lambda _: pytest.fail("parked"))
    endpoint = Endpoint()
    endpoint.needs_actor = True
    link.add_endpoint(7, endpoint)
    link.ensure_attached(deadline())
    with pytest.raises(SessionLost):
        actor.connection.receive(MovedNotice("nobody used it", is_asleep=True))
    actor.connection.lose()
    wait_until(lambda: ("reopen", 2) in endpoint.told)


def test_a_caller_that_waits_while_the_actor_falls_asleep_wakes_it(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    asking, outcome = in_thread(lambda: ask(link))
    wait_until(lambda: actor.connection.sent)
    with pytest.raises(SessionLost):
        actor.connection.receive(MovedNotice("nobody used it", is_asleep=True))
    actor.connection.lose()
    wait_until(lambda: len(actor.connections) == 2 and actor.connection.sent)
    actor.connection.receive(Done(actor.connection.sent[0].request_id, "answer"))
    asking.join(DEADLINE_S)
    assert outcome == ["answer"]


def test_a_link_that_cannot_wake_its_actor_is_not_connected(link_to: MakeLink) -> None:
    actor = Actor()
    link, _ = parked_link(link_to, actor)
    actor.refusals = [NotConnected("starting"), NotConnected("starting")]
    actor.may_attach.clear()
    link.wake()
    assert link.is_asleep
    assert not link.is_parked
    actor.may_attach.set()
    link.ensure_attached(deadline())
    assert not link.is_asleep


def test_a_closed_link_is_neither_parked_nor_asleep(link_to: MakeLink) -> None:
    link, _ = parked_link(link_to, Actor())
    link.close()
    assert [link.is_parked, link.is_asleep] == [False, False]
    link.wake()
    with pytest.raises(AlreadyClosed):
        link.ensure_attached(deadline())


def test_a_link_without_endpoints_attaches_to_an_actor_that_moved_only_when_asked(link_to: MakeLink) -> None:
    actor = Actor()
    link = link_to(actor)
    link.ensure_attached(deadline())
    actor.connection.lose()
    assert link._phase is Phase.DETACHED
    assert link.ensure_attached(deadline()).attachment == 2


def test_an_opening_waits_for_a_process_that_is_still_starting(link_to: MakeLink) -> None:
    actor = Actor()
    actor.may_attach.clear()
    looks: list[None] = []

    def starting() -> bool:
        looks.append(None)
        if len(looks) == 2:
            actor.may_attach.set()
        return True

    actor.starting = starting
    given = deadline(0.01)
    left = link_to(actor).ensure_started(given)
    assert len(looks) >= 2
    assert left > time.monotonic(), "there is time for what is asked next"


def test_an_opening_does_not_wait_longer_for_a_process_that_runs(link_to: MakeLink) -> None:
    actor = Actor()
    actor.may_attach.clear()
    with pytest.raises(Timeout, match="did not answer an attach in time"):
        link_to(actor).ensure_started(deadline(0.01))
    actor.may_attach.set()


def test_a_process_that_never_starts_is_named_as_starting(
    link_to: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_link, "STARTING_S", 0.05)
    monkeypatch.setattr(actor_link, "STARTING_LOOK_S", 0.01)
    actor = Actor()
    actor.may_attach.clear()
    actor.starting = lambda: True
    with pytest.raises(Timeout, match=r"a is still starting.*Try again"):
        link_to(actor).ensure_started(deadline(0.01))
    actor.may_attach.set()


def test_an_opening_in_time_keeps_its_deadline(link_to: MakeLink) -> None:
    given = deadline()
    assert link_to(Actor()).ensure_started(given) == given
