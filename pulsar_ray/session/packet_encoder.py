"""Encoding packets of one type that go out again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from pulsar_ray.session.packet import Buffer, packet_head, total_bytes
from pulsar_ray.session.requests import TYPE_OF

_KEPT_BYTES = 4096


class PacketEncoder:
    """`encode_request` for packets of one type; not for several threads.

    Its packer is kept: making one for every packet took longer than using it.
    """

    __slots__ = ("_pack", "_type")

    def __init__(self, request: type[Any]) -> None:
        self._type = TYPE_OF[request]
        self._pack = msgpack.Packer(buf_size=_KEPT_BYTES).pack

    def encode(self, fields: tuple[Any, ...], body: Sequence[Buffer] = ()) -> list[Buffer]:
        """The packet as buffers to write. Raises ProtocolError when a receiver would not accept it."""
        if not body:
            return [packet_head(self._type, self._pack(fields), 0)]
        return [packet_head(self._type, self._pack(fields), total_bytes(body)), *body]
