"""Asks everything that runs how it is, for a second at most.

Nobody is woken or started for it, and no answer counts as use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.health.disk_level import judge_disk
from pulsar_ray.broker.health.health_facts import SHOWN_PARTITIONS, ActorFacts, HealthFacts, StoreFacts
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.transport.actor_names import parse_dispatcher_name, parse_tracker_name, topic_of_actor

DEADLINE_S = 1.0
LOOKED_UP = 50
"""So many silent actors are looked up, to see whether they only start."""


async def gather_facts(
    stores: Stores,
    actors: BrokerActors,
    settings: Settings,
    unread_logs: list[str],
    takeover_of: Callable[[str], str],
    draining_of: Callable[[str], str],
) -> HealthFacts:
    """Collect all that `judge` needs.

    `takeover_of` says what is done about a store that is away, `draining_of` why one is not empty yet.
    """
    membership = stores.membership
    known = dict(stores.known)
    handles = {name: handle for name, handle in actors.handles.items() if parse_tracker_name(name) is None}
    of_stores, of_actors = await asyncio.gather(
        asyncio.gather(*(_store(store, settings, draining_of) for store in known.values())),
        asyncio.gather(*(_answer(handle) for handle in handles.values())),
    )
    silent = [name for name, answer in zip(handles, of_actors, strict=True) if answer is None][:LOOKED_UP]
    starting = await asyncio.to_thread(lambda: {name for name in silent if not handles[name].is_running()})
    hosts = {store_id: str(store["host"]) for store_id, store in known.items()}
    away = [
        {**store, "takeover": takeover_of(store["store_id"])} for store in membership.away(stores.present)
    ]
    return HealthFacts(
        stores=of_stores,
        actors=[
            _actor(name, hosts.get(actors.store_of(name), ""), answer, name in starting)
            for name, answer in zip(handles, of_actors, strict=True)
        ],
        away=away,
        away_partitions={
            store["store_id"]: membership.catalog.names_in(store["store_id"], SHOWN_PARTITIONS)
            for store in away
        },
        refused=list(stores.refused.values()),
        unknown=[each for found in stores.unknown.values() for each in found],
        unread_logs=unread_logs,
        expected_stores=membership.catalog.expected_stores - len(stores.resting),
    )


async def _store(store: dict[str, Any], settings: Settings, draining_of: Callable[[str], str]) -> StoreFacts:
    store_id, host, path = str(store["store_id"]), str(store["host"]), str(store["path"])
    draining = draining_of(store_id)
    clock = SystemClock()
    asked_ms = clock.now_ms()
    try:
        told = await store["handle"].call("health", within_s=DEADLINE_S)
    except Timeout:
        problem = f"does not answer within {DEADLINE_S:g} s"
        return StoreFacts(store_id, host, path, problem, draining=draining)
    except PulsarException as error:
        return StoreFacts(store_id, host, path, str(error), draining=draining)
    # The answer was given some time between the call and now.
    ahead_ms = max(told["nowMs"] - clock.now_ms(), 0) + min(told["nowMs"] - asked_ms, 0)
    return StoreFacts(
        store_id,
        host,
        path,
        disk=judge_disk(told["freeBytes"], told["totalBytes"], settings),
        draining=draining,
        clock_ahead_ms=ahead_ms,
        metrics_problem=told["metricsProblem"],
        remote_problem=told["remoteProblem"],
        remote_remark=told["remoteRemark"],
        remote_lag_s=told["remoteLagSeconds"],
    )


async def _answer(handle: ActorHandle) -> Mapping[str, Any] | None:
    """Return an actor's own account; None if it does not answer in time."""
    try:
        answer: Mapping[str, Any] = await handle.call("health", within_s=DEADLINE_S)
    except PulsarException:
        return None
    return answer


def _actor(name: str, host: str, answer: Mapping[str, Any] | None, is_starting: bool) -> ActorFacts:
    dispatcher = parse_dispatcher_name(name)
    subscription = "" if dispatcher is None else dispatcher[1] if dispatcher[2] else "readers"
    topic = topic_of_actor(name)
    if answer is None:
        problem = "starts: its process has ended, or is new" if is_starting else "does not answer"
        return ActorFacts(topic, host, subscription, problem, is_starting)
    return ActorFacts(topic, host, subscription, **answer)
