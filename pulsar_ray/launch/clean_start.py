"""Start the broker from a process of its own.

So no job's environment reaches the broker's actors.

That runs `main`, with the request on standard input.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, PulsarException, Timeout, error_from
from pulsar_ray.launch.rays.joined_ray import reaching
from pulsar_ray.transport.actor_names import NAMESPACE

TIMEOUT_S = 180.0
_ANSWER = "pulsar-ray-answer: "
_COMMAND = "from pulsar_ray.launch.clean_start import main; main()"
# Variables that tell a process of which job, task and environment it is part.
_OF_JOBS = ("RAY_JOB_", "RAY_RUNTIME_ENV", "RAY_OVERRIDE_", "PYTHONPATH", "RAY_ADDRESS")


def start_from_clean_process(settings: Settings, word: StartPermission) -> dict[str, Any]:
    """Call `bring_up` in another process, on the Ray of this one.

    Raises whatever that raises, or Timeout.
    """
    request = {
        "address": ray.get_runtime_context().gcs_address,
        "settings": asdict(settings),
        "word": asdict(word),
    }
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OF_JOBS)}
    # Where this code is; an environment of the job may be the only place that has it installed.
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            # Ray lets its workers import from where a driver runs.
            cwd="/",
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise Timeout(f"the broker did not start within {TIMEOUT_S:.0f} s: look at the logs of Ray") from None
    for line in done.stdout.splitlines():
        if line.startswith(_ANSWER):
            answer = json.loads(line.removeprefix(_ANSWER))
            if "error" in answer:
                raise error_from(*answer["error"])
            described: dict[str, Any] = answer["described"]
            return described
    raise ConnectError(
        f"the process that starts the broker ended with {done.returncode}: {done.stderr.strip()[-500:]}"
    )


def main() -> None:
    """Start the broker as standard input asks, and report on standard output."""
    from pulsar_ray.launch.bring_up import bring_up  # noqa: PLC0415 - only this process loads the actors

    request = json.loads(sys.stdin.read())
    with reaching(request["address"]):
        ray.init(
            address=request["address"], namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    answer: dict[str, Any]
    try:
        answer = {"described": bring_up(Settings(**request["settings"]), StartPermission(**request["word"]))}
    except PulsarException as error:
        answer = {"error": [type(error).__name__, error.text, error.details]}
    sys.stdout.write(f"\n{_ANSWER}{json.dumps(answer)}\n")
    sys.stdout.flush()
    ray.shutdown()
