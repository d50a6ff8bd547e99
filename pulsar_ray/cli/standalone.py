"""The process behind an embedded broker: a Ray of its own, the broker on it, and an end when nobody uses it.

Run as `python -m pulsar_ray.cli.standalone SETTINGS.json` by the first client, or by `pulsar-ray standalone`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pulsar_ray.actors.embedded import has_clients, record_failure, remove_record, write_record
from pulsar_ray.actors.local_ray import start_ray, stop_ray
from pulsar_ray.actors.start import start_broker, stop_broker
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException

LOOK_INTERVAL_S = 0.5


class _Stop(BaseException):
    """Raised by the signal handler."""


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise _Stop


def serve(settings: Settings, *, idle_seconds: float, on_ready: Callable[[str, str], None]) -> None:
    """Serve until a signal, or until nobody has used the broker for `idle_seconds` (0: for ever).

    `on_ready(address, dashboard url)` is called once it serves. Raises what is wrong with the data directory.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _on_signal)
    data_dir = Path(settings.data_dir)
    try:
        address, dashboard_url = start_ray()
        start_broker(settings)
        write_record(data_dir, address, dashboard_url)
        on_ready(address, dashboard_url)
        _wait_until_idle(data_dir, idle_seconds)
    except _Stop:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        remove_record(data_dir)
        try:
            stop_broker()
        finally:
            stop_ray()


def _wait_until_idle(data_dir: Path, idle_seconds: float) -> None:
    used_at = time.monotonic()
    while not idle_seconds or time.monotonic() - used_at < idle_seconds:
        time.sleep(LOOK_INTERVAL_S)
        if has_clients(data_dir):
            used_at = time.monotonic()


def main() -> int:
    """Serve with the settings in the file named by the first argument."""
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        serve(
            settings,
            idle_seconds=settings.embedded_idle_shutdown_seconds,
            on_ready=lambda address, _: print(f"serving {settings.data_dir} at {address}", flush=True),
        )
    except PulsarException as error:
        record_failure(Path(settings.data_dir), error)
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
