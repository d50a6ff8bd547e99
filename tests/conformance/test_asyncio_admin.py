"""The asyncio Admin: the calls of the synchronous one, awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio import Admin as LoopAdmin
from pulsar_ray.errors import AlreadyClosed, NotAllowedError, TopicNotFound
from tests.conformance.broker import Broker


@pytest.fixture
def run(broker: Broker) -> Callable[[Callable[[LoopAdmin], Awaitable[object]]], None]:
    """Run a coroutine function with an asyncio Admin on a loop of its own."""

    def run(test: Callable[[LoopAdmin], Awaitable[object]]) -> None:
        async def main() -> None:
            async with LoopAdmin._on(broker.cluster) as admin:
                await test(admin)

        asyncio.run(main())

    return run


def test_topics_schemas_and_policies_are_administered(
    run: Callable[[Callable[[LoopAdmin], Awaitable[object]]], None],
) -> None:
    async def test(admin: LoopAdmin) -> None:
        await admin.topics.create_partitioned_topic("t", 2)
        with pytest.raises(NotAllowedError, match="exists"):
            await admin.topics.create_topic("t")
        assert await admin.topics.get_partitions("t") == 2
        await admin.topics.policies.set("t", "max_producers", 3)
        assert (await admin.topics.policies.get("t", "max_producers")).value == {"max_producers": 3}
        assert await admin.schemas.versions("t") == []
        many = await asyncio.gather(*(admin.topics.stats("t") for _ in range(5)))
        assert {len(stats["partitions"]) for stats in many} == {2}
        await admin.topics.delete("t")
        with pytest.raises(TopicNotFound):
            await admin.topics.stats("t")
        assert (await admin.broker())["stores"]

    run(test)


def test_it_ends_once(broker: Broker) -> None:
    async def main() -> None:
        admin = LoopAdmin._on(broker.cluster)
        await admin.close()
        with pytest.raises(AlreadyClosed):
            await admin.topics.list()

    asyncio.run(main())


def test_it_has_what_the_synchronous_one_has(broker: Broker) -> None:
    admin, same = broker.admin(), LoopAdmin._on(broker.cluster)
    for area in ("topics", "namespaces", "tenants", "brokers", "stores", "schemas"):
        blocking, awaited = getattr(admin, area), getattr(same, area)
        names = [name for name in dir(blocking) if not name.startswith("_")]
        assert dir(awaited) == names
        for name in names:
            method = getattr(awaited, name)
            if inspect.ismethod(getattr(blocking, name)):
                assert inspect.iscoroutinefunction(method), name
                assert inspect.signature(method) == inspect.signature(getattr(blocking, name)), name
    with pytest.raises(AttributeError):
        same.topics.no_such_call  # noqa: B018
    admin.close()
    asyncio.run(same.close())
    areas = {
        name
        for name, value in vars(Admin()).items()
        if not name.startswith("_") and hasattr(value, "__dict__")
    }
    assert areas <= set(vars(same)) | {"operation_timeout_s"}, areas
