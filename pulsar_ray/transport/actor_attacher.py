"""Attaches to an actor by its name.

It chooses where to ask, looks the name up again once the actor has moved, and asks for the way that leads
there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from pulsar_ray.errors import Moved, Timeout
from pulsar_ray.transport.cluster import AttachReply, Cluster

ATTACH_TIMEOUT_S = 5.0
_ATTEMPTS = itertools.count(1)


class ActorAttacher:
    """Attaches one client to one actor, in one thread at a time.

    `find_address` is asked only once nobody has the name any more: it takes no controller to attach to an
    actor that is where it was.
    """

    def __init__(
        self, cluster: Cluster, address: str, find_address: Callable[[], str], client_id: str, transport: str
    ) -> None:
        self._cluster = cluster
        self.address = address
        """The name it is asked by."""
        self._has_moved = False
        self._find_address = find_address
        self._client_id = client_id
        self._transport = transport
        self._wants_tcp = transport == "tcp"

    def attach(self) -> AttachReply:
        """Attach once.

        Raises Moved, Timeout, or what the actor refuses with; a later call may do better.
        """
        if self._has_moved:
            self.address = self._find_address()
            self._has_moved = False
        attached = self._ask()
        if self._transport == "auto" and not self._wants_tcp and not os.path.exists(attached.unix_path or ""):
            # Another node, or another mount namespace: its Unix socket is not here, so ask for a port.
            self._wants_tcp = True
            attached = self._ask()
        return attached

    def expect_moved(self) -> None:
        """Have the next attempt find the actor first: it has left."""
        self._has_moved = True
        self._cluster.forget(self.address)

    def _ask(self) -> AttachReply:
        try:
            return self._cluster.attach(
                self.address,
                self._client_id,
                want_tcp=self._wants_tcp,
                attempt=next(_ATTEMPTS),
                timeout_s=ATTACH_TIMEOUT_S,
            )
        except Moved:
            self._has_moved = True
            raise
        except Timeout:
            self._cluster.report_silent(self.address)
            raise
