"""A program that starts a Ray with a broker on a data directory, and ends both in order with its stdin.

`python -m tests.torture.real.host '<json of HostSpec>'`
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from dataclasses import dataclass
from typing import Any

import ray

import pulsar_ray
from pulsar_ray.launch.start import stop_broker

ANSWER = "up: "
NO_RAY = "Ray did not start"
CPUS = 2
STORE_BYTES = 100 << 20


@dataclass(frozen=True)
class HostSpec:
    """`session_dir` is where Ray keeps its sessions."""

    data_dir: str
    session_dir: str
    settings: dict[str, Any]


def main() -> None:
    spec = HostSpec(**json.loads(sys.argv[1]))
    try:
        ray.init(
            num_cpus=CPUS,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="torture",
            _temp_dir=spec.session_dir,
        )
    except Exception:  # Ray raises no other where its processes are not up in time
        print(NO_RAY, flush=True)
        raise
    client = pulsar_ray.Client(data_dir=spec.data_dir, **spec.settings)
    client.get_topic_partitions("warm-up")
    processes = ray._private.worker._global_node.all_processes  # type: ignore[attr-defined]
    told = {
        "address": ray.get_runtime_context().gcs_address,
        "raylet": processes["raylet"][0].process.pid,
        "gcs": processes["gcs_server"][0].process.pid,
    }
    print(ANSWER + json.dumps(told), flush=True)
    sys.stdin.read()
    client.close()
    stop_broker()
    with contextlib.suppress(Exception):
        ray.shutdown()


if __name__ == "__main__":
    main()
