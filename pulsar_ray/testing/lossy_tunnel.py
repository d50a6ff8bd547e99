"""Faults of tunnel calls, drawn from a seed.

Calls and replies get lost, repeated, delayed and reordered.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class TunnelFaults:
    """Probabilities of faults per call.

    `delay_s` bounds how late a delayed call is made, after ones that follow it.
    """

    lose_call: float = 0.0
    lose_reply: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.02


LOSSY = TunnelFaults(lose_call=0.1, lose_reply=0.1, repeat=0.15, delay=0.1)
PERFECT = TunnelFaults()


@dataclass(frozen=True)
class CallFate:
    """When a call is made (None: never), how often, and whether it answers."""

    after_s: float | None
    times: int
    has_reply: bool


class FateSource:
    """Draws the fate of each call; thread-safe.

    The seed does not decide which thread draws next.
    """

    def __init__(self, faults: TunnelFaults, seed: int) -> None:
        self.faults = faults
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """How often each fault was drawn."""

    def draw(self) -> CallFate:
        """The fate of the next call."""
        faults = self.faults
        if faults is PERFECT:
            return CallFate(0.0, 1, has_reply=True)
        with self._lock:
            lost, unanswered, repeated, delayed, late = (self._random.random() for _ in range(5))
            if lost < faults.lose_call:
                self.counts["lose call"] += 1
                return CallFate(None, 0, has_reply=False)
            times = 1
            if repeated < faults.repeat:
                self.counts["repeat call"] += 1
                times = 2
            if delayed < faults.delay:
                self.counts["delay call"] += 1
                # The caller has given up on it before it arrives.
                return CallFate(late * faults.delay_s, times, has_reply=False)
            has_reply = unanswered >= faults.lose_reply
            self.counts["lose reply"] += not has_reply
            return CallFate(0.0, times, has_reply)
