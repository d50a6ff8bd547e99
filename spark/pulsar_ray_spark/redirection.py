"""Redirect the output of this process and its new children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def redirected(targets: Mapping[int, int]) -> Iterator[None]:
    """Let descriptors of this process lead where others do.

    `targets` maps each descriptor to the one to write to. Children that are started meanwhile inherit that,
    and keep it.
    """
    _flush()
    kept = {number: os.dup(number) for number in targets}
    try:
        for number, target in targets.items():
            os.dup2(target, number)
        yield
    finally:
        _flush()
        for number, original in kept.items():
            os.dup2(original, number)
            os.close(original)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
