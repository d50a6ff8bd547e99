"""The process behind an embedded broker.

It runs a Ray of its own with the broker on it, and ends when nobody uses it.

Run as `python -m pulsar_ray.cli.standalone SETTINGS.json` by the first client, or by `pulsar-ray standalone`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.broker.serving.logs.broker_log import begin_broker_log
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.logs.log_lines import LogContext
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, PulsarException
from pulsar_ray.gateway.gateway_actor import start_gateway
from pulsar_ray.launch.broker_place import BrokerPlace
from pulsar_ray.launch.embedded import EmbeddedRecord, record_failure
from pulsar_ray.launch.rays.own_ray import ended_ray_process, start_ray, stop_ray
from pulsar_ray.launch.start import start_broker, stop_broker

# Run as a program, its module has another name.
logger = logging.getLogger("pulsar_ray.cli.standalone")

LOOK_INTERVAL_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stop(BaseException):
    """Raised by the signal handler."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _on_signal(number: int, _frame: FrameType | None) -> None:
    raise _Stop(number)


def _raise_at_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, _on_signal)


def serve(
    settings: Settings,
    word: StartPermission,
    *,
    idle_seconds: float,
    on_ready: Callable[[EmbeddedRecord, str], None],
) -> int:
    """Serve until a signal, or until nobody has used the broker for `idle_seconds`.

    Returns the signal's number, or 0.

    0 idle seconds stand for ever. `word` says what may be made, `on_ready` is called once it
    serves, with the address of HTTP or "". Raises what is wrong with the data directory, also if it goes
    while the broker serves, and ConnectError when Ray has ended under it.
    """
    _raise_at_signals()
    # Files made here are closed to other users, as are those of its Ray's processes.
    os.umask(0o077)
    undo = ExitStack()
    try:
        place = BrokerPlace(Path(settings.data_dir))
        undo.callback(stop_ray)
        address, dashboard_url = start_ray(has_dashboard=settings.embedded_dashboard)
        # Again: starting Ray puts in handlers of its own.
        _raise_at_signals()
        undo.callback(_stop_broker, place)
        start_broker(settings, word)
        record = place.offer(address, dashboard_url)
        undo.callback(place.leave)
        on_ready(record, start_gateway(settings) if settings.http_address() else "")
        _wait_until_idle(place, settings.data_dir, idle_seconds)
    except _Stop as stop:
        return stop.number
    else:
        return 0
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        undo.close()


def _stop_broker(place: BrokerPlace) -> None:
    # Without its directory there is nothing to make durable, and no end to trying.
    if ended_ray_process() is None and place.has_data():
        stop_broker()


def _wait_until_idle(place: BrokerPlace, data_dir: str, idle_seconds: float) -> None:
    used_at = time.monotonic()
    while True:
        time.sleep(LOOK_INTERVAL_S)
        if (ended := ended_ray_process()) is not None:
            raise ConnectError(
                f"Ray's {ended} has ended, and the broker of {data_dir} with it: start it again"
            )
        now = time.monotonic()
        if place.is_used(now):
            used_at = now
        elif idle_seconds and now - used_at >= idle_seconds and place.withdraw():
            return


def main() -> int:
    """Serve with the settings in the file named by the first argument."""
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text()))
    context = LogContext("standalone", socket.gethostname())
    begin_broker_log(context, form=settings.log_format, level=settings.log_level)
    try:
        number = serve(
            settings,
            StartPermission(may_found=True),
            idle_seconds=settings.embedded_idle_shutdown_seconds,
            on_ready=partial(_log_ready, settings.data_dir),
        )
    except PulsarException as error:
        logger.error("%s", error)
        with contextlib.suppress(OSError):
            record_failure(Path(settings.data_dir), error)
        return 1
    idle = f"no program has used it for {settings.embedded_idle_shutdown_seconds:g} s"
    event(logger, "has ended: %s", f"signal {number}" if number else idle)
    return 0


def _log_ready(data_dir: str, record: EmbeddedRecord, http_url: str) -> None:
    event(logger, "serves %s at %s%s", data_dir, record.address, f", and {http_url}" if http_url else "")
    if record.open_to:
        logger.warning("%s", record.open_to)


if __name__ == "__main__":
    sys.exit(main())
