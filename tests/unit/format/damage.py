"""Every small damage of a stored sample: what each format's tests feed to its parser."""

from __future__ import annotations

from collections.abc import Iterator


def bit_flips(sample: bytes) -> Iterator[bytes]:
    """Yield the sample with each single bit flipped."""
    for place in range(len(sample)):
        for bit in range(8):
            yield sample[:place] + bytes([sample[place] ^ 1 << bit]) + sample[place + 1 :]


def truncations(sample: bytes) -> Iterator[bytes]:
    """Yield the sample cut off before each of its bytes."""
    for length in range(len(sample)):
        yield sample[:length]
