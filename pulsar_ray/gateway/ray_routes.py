"""All that `Admin` can do and Pulsar has no path for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from pulsar_ray.gateway.calls import NAMESPACE, TOPIC, Calls, namespace_of, topic_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.redriving import Check, permitted_target
from pulsar_ray.gateway.replies import Refusal, body_of, done, flag_of, found, number_of
from pulsar_ray.security.authorization import Right

BROKER = "/admin/v2/ray"
OVERVIEW_ROWS = "200"
LETTERS_AT_ONCE = 10_000
"""So many letters are sent back by one request; the next one goes on."""
_NODE = f"{BROKER}/nodes/{{node}}/drain"
_STORE = f"{BROKER}/stores/{{store}}"
_A_TOPIC = f"/admin/v2/{TOPIC}"
_A_SUBSCRIPTION = f"{_A_TOPIC}/subscription/{{subscription}}"
_WORD = re.compile("_(.)")


class RayRoutes:
    """Routes of the broker as a whole, and further ones of topics and subscriptions.

    Moves, drains and offloads are begun, and go on by themselves: none keeps a request waiting.
    """

    def __init__(self, calls: Calls, check: Check) -> None:
        self._call = calls
        self._check = check
        self._admin = calls.admin
        self._topics = calls.admin.topics

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        for method, path, right, handler in (
            ("GET", f"{BROKER}/broker", Right.SUPERUSER, self.broker),
            ("GET", f"{BROKER}/stats", Right.SUPERUSER, self.stats),
            ("GET", f"{BROKER}/health", Right.SUPERUSER, self.health),
            ("GET", f"{BROKER}/overview", Right.SUPERUSER, self.overview),
            ("GET", f"{BROKER}/nodes", Right.SUPERUSER, self.nodes),
            ("PUT", _NODE, Right.SUPERUSER, self.drain),
            ("DELETE", _NODE, Right.SUPERUSER, self.undrain),
            ("GET", f"{BROKER}/moves", Right.SUPERUSER, self.moves),
            ("POST", f"{BROKER}/balance", Right.SUPERUSER, self.balance),
            ("PUT", f"{BROKER}/expectedStores", Right.SUPERUSER, self.expect_stores),
            ("GET", f"{BROKER}/remote", Right.SUPERUSER, self.remote),
            ("GET", _STORE, Right.SUPERUSER, self.losses),
            ("DELETE", _STORE, Right.SUPERUSER, self.forget),
            (
                "POST",
                f"/admin/v2/namespaces/{NAMESPACE}/abandonChangeLogs",
                Right.SUPERUSER,
                self.abandon_change_logs,
            ),
            # Which node stores what concerns all tenants.
            ("POST", f"{_A_TOPIC}/move", Right.SUPERUSER, self.move),
            ("POST", f"{_A_TOPIC}/redrive", Right.TENANT_ADMIN, self.redrive),
            ("PUT", f"{_A_TOPIC}/fetchBack", Right.TENANT_ADMIN, self.fetch_back),
            ("GET", f"{_A_TOPIC}/producers", Right.LOOK, self.sequence_ids),
            ("DELETE", f"{_A_TOPIC}/producers", Right.TENANT_ADMIN, self.forget_producers),
            ("GET", f"{_A_SUBSCRIPTION}/whyBlocked", Right.CONSUME, self.why_blocked),
            ("GET", f"{_A_SUBSCRIPTION}/keyOwner", Right.CONSUME, self.key_owner),
            ("POST", f"{_A_SUBSCRIPTION}/delayedDeliveryStrict", Right.CONSUME, self.set_strict),
            ("DELETE", f"{_A_SUBSCRIPTION}/delayedDeliveryStrict", Right.CONSUME, self.unset_strict),
        ):
            routes.add(method, path, right, handler)

    # --- the broker -------------------------------------------------------------------------------

    async def broker(self, request: web.Request) -> web.Response:
        """Describe the broker: its controller, stores and settings."""
        return found(await self._call(self._admin.broker))

    async def stats(self, request: web.Request) -> web.Response:
        """Return the counters of all actors, and the room of all stores."""
        return found(await self._call(self._admin.stats))

    async def health(self, request: web.Request) -> web.Response:
        """Say what does not work, the worst first; wakes nobody."""
        return found((await self._call(self._admin.health)).described())

    async def overview(self, request: web.Request) -> web.Response:
        """List the topics whose names contain `text`, the first `limit` by `sort`, with their figures."""
        query = request.query
        limit = number_of("limit", query.get("limit", OVERVIEW_ROWS), 1)
        text, sort = query.get("text", ""), query.get("sort", "backlog")
        return found(await self._call(self._admin.overview, text, sort=sort, limit=limit))

    async def expect_stores(self, request: web.Request) -> web.Response:
        """Keep how many stores there are to be: a number, 0 to take it back."""
        await self._call(self._admin.brokers.expect_stores, await body_of(request, int))
        return done()

    # --- nodes and stores -------------------------------------------------------------------------

    async def nodes(self, request: web.Request) -> web.Response:
        """List the nodes that have, had or could have a store."""
        return found(_described(await self._call(self._admin.brokers.nodes)))

    async def drain(self, request: web.Request) -> web.Response:
        """Begin to move everything away from a node."""
        await self._call(self._admin.brokers.drain, request.match_info["node"], wait=False)
        return done()

    async def undrain(self, request: web.Request) -> web.Response:
        """Let a node that was drained take partitions again."""
        await self._call(self._admin.brokers.undrain, request.match_info["node"])
        return done()

    async def moves(self, request: web.Request) -> web.Response:
        """List the moves of partitions under way, and the last that are over."""
        return found(_described(await self._call(self._admin.brokers.moves)))

    async def balance(self, request: web.Request) -> web.Response:
        """Begin to move partitions until all stores have about as many."""
        return found(_described(await self._call(self._admin.brokers.balance, wait=False)))

    async def remote(self, request: web.Request) -> web.Response:
        """Say how far each store is shipped into the object store."""
        return found(_described(await self._call(self._admin.stores.remote)))

    async def losses(self, request: web.Request) -> web.Response:
        """Say what would be lost with a store that is gone."""
        loss = await self._call(self._admin.stores.losses, request.match_info["store"])
        return found(_described([loss])[0])

    async def forget(self, request: web.Request) -> web.Response:
        """Give a lost store up with `acceptLoss=true`, and begin its partitions anew elsewhere."""
        store, accepts = request.match_info["store"], flag_of(request, "acceptLoss")
        if not accepts:
            loss = await self._call(self._admin.stores.losses, store)
            raise Refusal(
                409,
                f"with store {store[:100]} of {loss.host} {len(loss.partitions)} partitions are lost: say "
                "acceptLoss=true if its disk is lost",
            )
        return found(_described([await self._call(self._admin.stores.forget, store, accept_loss=True)])[0])

    async def abandon_change_logs(self, request: web.Request) -> web.Response:
        """Give up logs of policies whose disks are lost for good, and return their names."""
        return found(await self._call(self._admin.namespaces.abandon_change_logs, namespace_of(request)))

    # --- topics -----------------------------------------------------------------------------------

    async def move(self, request: web.Request) -> web.Response:
        """Begin to move a topic or a partition to the store of another `node`."""
        node = (await body_of(request, dict)).get("node")
        if not isinstance(node, str) or not node:
            raise Refusal(400, 'send {"node": "..."}: a host, or how the id of its store begins')
        return found(_described(await self._call(self._topics.move, topic_of(request), node, wait=False)))

    async def redrive(self, request: web.Request) -> web.Response:
        """Send dead letters back, and return how many went to each topic.

        The body may have `to`, `subscription`, `limit` and `dryRun`.
        """
        body, topic = await body_of(request, dict, {}), topic_of(request)
        unknown = sorted(body.keys() - {"to", "subscription", "limit", "dryRun"})
        if unknown:
            raise Refusal(400, f"{unknown[0][:100]!r} is unknown: send to, subscription, limit or dryRun")
        subscription, to = body.get("subscription"), body.get("to") or ""
        is_dry, limit = body.get("dryRun", False), body.get("limit")
        if not isinstance(to, str):
            raise Refusal(400, "`to` is no text: send the name of a topic")
        if not is_dry:
            to = await permitted_target(self._call, self._check, topic, to, subscription)
            limit = LETTERS_AT_ONCE if limit is None else limit
            if type(limit) is not int or limit > LETTERS_AT_ONCE:
                raise Refusal(400, f"limit={str(limit)[:100]}: give a number up to {LETTERS_AT_ONCE}")
        moved = await self._call(
            self._topics.redrive, topic, to or None, subscription=subscription, limit=limit, dry_run=is_dry
        )
        return found(moved)

    async def fetch_back(self, request: web.Request) -> web.Response:
        """Begin to bring offloaded segments back to the disk."""
        await self._call(self._topics.fetch_back, topic_of(request))
        return done()

    async def sequence_ids(self, request: web.Request) -> web.Response:
        """Return the highest sequence id of each producer whose name begins with `prefix`."""
        prefix = request.query.get("prefix", "")
        return found(await self._call(self._topics.producer_sequence_ids, topic_of(request), prefix))

    async def forget_producers(self, request: web.Request) -> web.Response:
        """Make deduplication forget the producers whose names begin with `prefix`."""
        prefix = _needed(request, "prefix")
        return found(await self._call(self._topics.forget_producers, topic_of(request), prefix))

    # --- subscriptions ----------------------------------------------------------------------------

    async def why_blocked(self, request: web.Request) -> web.Response:
        """Say why messages of a subscription are not delivered just now."""
        return found(await self._call(self._topics.why_blocked, *_subscription_of(request)))

    async def key_owner(self, request: web.Request) -> web.Response:
        """Return the hash of a `key`, and the consumer that owns it by Key_Shared."""
        key = _needed(request, "key")
        return found(await self._call(self._topics.key_owner, *_subscription_of(request), key))

    async def set_strict(self, request: web.Request) -> web.Response:
        """Say whether delayed messages of a subscription may come up to a tick early."""
        await self._strict(request, await body_of(request, bool))
        return done()

    async def unset_strict(self, request: web.Request) -> web.Response:
        """Let the topic's policy say whether delayed messages may come early."""
        await self._strict(request, None)
        return done()

    async def _strict(self, request: web.Request, strict: bool | None) -> None:
        await self._call(self._topics.set_delayed_delivery_strict, *_subscription_of(request), strict)


def _subscription_of(request: web.Request) -> tuple[str, str]:
    return topic_of(request), request.match_info["subscription"]


def _needed(request: web.Request, name: str) -> str:
    if not (value := request.query.get(name, "")):
        raise Refusal(400, f"{name} is missing: give it in the query")
    return value


def _described(values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the fields of dataclasses, named as REST names them."""
    return [
        {
            _WORD.sub(lambda word: word[1].upper(), name): each
            for name, each in dataclasses.asdict(one).items()
        }
        for one in values
    ]
