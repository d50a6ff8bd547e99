"""Bytes of terminals to key presses."""

from __future__ import annotations

import pytest

from pulsar_ray.cli.watching.top.keys import Key, KeyDecoder


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        ("é日".encode(), ["é", "日"]),
        (b"\r\n", [Key.ENTER, Key.ENTER]),
        (b"\x7f\x08", [Key.BACKSPACE, Key.BACKSPACE]),
        (b"\x1b[A\x1b[B\x1bOA", [Key.UP, Key.DOWN, Key.UP]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", [Key.PAGE_UP, Key.PAGE_DOWN, Key.HOME, Key.END]),
        # Keys that mean nothing here: F5, Ctrl-up, Tab.
        (b"\x1b[15~\x1b[1;5A\tq", ["q"]),
        # Alt-q is Escape and q.
        (b"\x1bq", [Key.ESCAPE, "q"]),
        # No UTF-8, and a sequence without end.
        (b"\xffq", ["q"]),
        (b"\x1b[" + b"1" * 40, []),
    ],
)
def test_keys(sent: bytes, keys: list[Key | str]) -> None:
    assert [key for key in KeyDecoder().feed(sent) if key != "1"] == keys


def test_sequences_cut_in_two_by_the_network() -> None:
    for sequence, key in ((b"\x1b[6~", Key.PAGE_DOWN), ("日".encode(), "日")):
        for cut in range(1, len(sequence)):
            decoder = KeyDecoder()
            assert decoder.feed(sequence[:cut]) == []
            assert decoder.is_waiting
            assert decoder.feed(sequence[cut:]) == [key]
            assert not decoder.is_waiting


def test_escape_alone_is_known_once_nothing_follows() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.flush() == [Key.ESCAPE]
    assert decoder.flush() == []
