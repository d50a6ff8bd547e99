"""Encoding packets of one type that go out again and again."""

from __future__ import annotations

from typing import Any

import msgpack

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import HEADER, MAGIC, MAX_FIELDS_BYTES, Buffer
from pulsar_ray.session.requests import PACKET_TYPES

_KEPT_BYTES = 4096


class PacketEncoder:
    """`encode_request` for packets of one type without a body; not for several threads.

    Its packer is kept: making one for every packet took longer than using it.
    """

    __slots__ = ("_name", "_pack", "_type")

    def __init__(self, request: type[Any]) -> None:
        self._name = request.__name__
        self._type = next(number for number, known in PACKET_TYPES.items() if known is request)
        self._pack = msgpack.Packer(buf_size=_KEPT_BYTES).pack

    def encode(self, fields: tuple[Any, ...]) -> list[Buffer]:
        """The packet as buffers to write. Raises ProtocolError when a receiver would not accept it."""
        packed: bytes = self._pack(fields)
        if len(packed) > MAX_FIELDS_BYTES:
            raise ProtocolError(
                f"{self._name} of {len(packed)} bytes in one packet; at most {MAX_FIELDS_BYTES}"
            )
        return [HEADER.pack(MAGIC, self._type, 0, len(packed), 0) + packed]
