"""Sets up the process of a broker actor: its thread, limits and log."""

from __future__ import annotations

import logging
import socket
import time

from pulsar_ray.broker.serving.logs.broker_log import begin_broker_log
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.logs.log_lines import LogContext
from pulsar_ray.broker.serving.owner_loop import prepare_broker_process
from pulsar_ray.config import Settings
from pulsar_ray.transport.this_ray import node_id, session_directory, was_restarted

logger = logging.getLogger(__name__)


def begin_broker_process(
    component: str, settings: Settings, *, topic: str = "", subscription: str = ""
) -> None:
    """Prepare this process before it serves, and begin its log."""
    prepare_broker_process()
    context = LogContext(component, socket.gethostname(), node_id()[:8], topic, subscription)
    begin_broker_log(
        context, form=settings.log_format, level=settings.log_level, directory=session_directory() / "logs"
    )


def say_serving(began_s: float, found: str, *, is_new: bool = False) -> None:
    """Log that this actor serves, and what it found; `began_s` is when it began, monotonic."""
    how = "after its process ended" if was_restarted() else "new" if is_new else "started"
    event(logger, "serves, %s, within %.2f s: %s", how, time.monotonic() - began_s, found)
