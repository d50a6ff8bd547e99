"""Sets up the process of a broker actor: its thread, limits and log."""

from __future__ import annotations

import socket

from pulsar_ray.broker.serving.logs.broker_log import begin_broker_log
from pulsar_ray.broker.serving.logs.log_lines import LogContext
from pulsar_ray.broker.serving.owner_loop import prepare_broker_process
from pulsar_ray.config import Settings
from pulsar_ray.transport.this_ray import node_id, session_directory


def begin_broker_process(
    component: str, settings: Settings, *, topic: str = "", subscription: str = ""
) -> None:
    """Prepare this process before it serves, and begin its log."""
    prepare_broker_process()
    context = LogContext(component, socket.gethostname(), node_id()[:8], topic, subscription)
    begin_broker_log(
        context, form=settings.log_format, level=settings.log_level, directory=session_directory() / "logs"
    )
