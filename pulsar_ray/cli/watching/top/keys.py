"""Makes key presses of the bytes that a terminal sends. Pure."""

from __future__ import annotations

from enum import Enum

ESCAPE = 0x1B
_SEQUENCE_BYTES = 16
"""No key sends more; a longer sequence is no key."""


class Key(Enum):
    """Keys that are no characters."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    HOME = "home"
    END = "end"
    ENTER = "enter"
    ESCAPE = "escape"
    BACKSPACE = "backspace"


_SEQUENCES = {
    b"[A": Key.UP,
    b"[B": Key.DOWN,
    b"[C": Key.RIGHT,
    b"[D": Key.LEFT,
    b"OA": Key.UP,
    b"OB": Key.DOWN,
    b"OC": Key.RIGHT,
    b"OD": Key.LEFT,
    b"[5~": Key.PAGE_UP,
    b"[6~": Key.PAGE_DOWN,
    b"[H": Key.HOME,
    b"OH": Key.HOME,
    b"[1~": Key.HOME,
    b"[7~": Key.HOME,
    b"[F": Key.END,
    b"OF": Key.END,
    b"[4~": Key.END,
    b"[8~": Key.END,
}
_BYTES = {0x0D: Key.ENTER, 0x0A: Key.ENTER, 0x7F: Key.BACKSPACE, 0x08: Key.BACKSPACE}


class KeyDecoder:
    """Takes bytes as they come; a sequence may be cut in two by the network."""

    def __init__(self) -> None:
        self._pending = b""

    @property
    def is_waiting(self) -> bool:
        """Whether more bytes may belong to those that came last.

        A lone Escape is one that nothing follows.
        """
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Key | str]:
        """Return the keys that are complete now: a `Key`, or a character."""
        data, self._pending = self._pending + data, b""
        keys: list[Key | str] = []
        while data:
            taken, key = _first_key(data)
            if not taken:
                self._pending = data
                break
            data = data[taken:]
            if key is not None:
                keys.append(key)
        return keys

    def flush(self) -> list[Key | str]:
        """Return the keys that the waiting bytes are, since no more have come."""
        pending, self._pending = self._pending, b""
        return [Key.ESCAPE] if pending[:1] == bytes([ESCAPE]) else []


def _first_key(data: bytes) -> tuple[int, Key | str | None]:
    """How many bytes the first key has, and the key.

    0 bytes: it is not complete. None: bytes that mean nothing here.
    """
    first = data[0]
    if first == ESCAPE:
        return _sequence(data)
    if first in _BYTES:
        return 1, _BYTES[first]
    if first < 0x20 or 0x80 <= first < 0xC0 or first >= 0xF8:
        return 1, None
    length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if len(data) < length:
        return 0, None
    try:
        character = data[:length].decode()
    except UnicodeDecodeError:
        return 1, None
    return length, character if character.isprintable() else None


def _sequence(data: bytes) -> tuple[int, Key | str | None]:
    if len(data) == 1:
        return 0, None
    if data[1:2] not in (b"[", b"O"):
        return 1, Key.ESCAPE
    for end in range(2, min(len(data), _SEQUENCE_BYTES)):
        if 0x40 <= data[end] <= 0x7E:
            return end + 1, _SEQUENCES.get(data[1 : end + 1])
    return (0, None) if len(data) < _SEQUENCE_BYTES else (len(data), None)
