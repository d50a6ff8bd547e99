"""A Ray Serve deployment with as many replicas as the backlog of a topic needs.

    python examples/serve_by_backlog.py

Each replica consumes by one Shared subscription, and reports how much waits there. Serve's autoscaler
asks a policy of ours, which divides the backlog. A replica that is taken away gives back what it had in
hand. Needs Ray 2.51 or later, and the extra `[serve]`.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

import pulsar_ray

DOCUMENTS, LENGTHS, SUBSCRIPTION = "documents", "lengths", "measuring"
TOTAL = 600
PER_REPLICA = 100
"""A replica for so many documents that wait."""
MOST_REPLICAS = 3
WORK_S = 0.02


def by_backlog(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The number of replicas that the backlog needs; Serve keeps it within bounds."""
    reported = (context.aggregated_metrics or {}).get("backlog", {})
    return math.ceil(max(reported.values(), default=0) / PER_REPLICA), {}


@serve.deployment(
    ray_actor_options={"num_cpus": 0},
    autoscaling_config=AutoscalingConfig(
        min_replicas=1,
        max_replicas=MOST_REPLICAS,
        upscale_delay_s=0,
        downscale_delay_s=1,
        metrics_interval_s=0.5,
        look_back_period_s=1,
        policy=AutoscalingPolicy(policy_function=by_backlog),
    ),
)
class Measuring:
    """Publishes the length of each document."""

    def __init__(self) -> None:
        self._client = pulsar_ray.Client()
        self._admin = pulsar_ray.Admin()
        # A short queue, so that what waits is there for a new replica.
        self._consumer = self._client.subscribe(
            DOCUMENTS, SUBSCRIPTION, pulsar_ray.ConsumerType.Shared, receiver_queue_size=5
        )
        self._lengths = self._client.create_producer(LENGTHS)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._is_ending.is_set():
            try:
                message = self._consumer.receive(timeout_millis=200)
            except pulsar_ray.Timeout:
                continue
            time.sleep(WORK_S)  # a model would compute here
            self._lengths.send(b"%d" % len(message.data()), partition_key=message.partition_key())
            # First published, then acknowledged: a replica that dies in between does it again.
            self._consumer.acknowledge(message)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve's autoscaler asks for this and gives it to the policy."""
        return {"backlog": self._admin.topics.stats(DOCUMENTS)["subscriptions"][SUBSCRIPTION]["msgBacklog"]}

    def __del__(self) -> None:
        """Serve calls this when it takes a replica away."""
        self._is_ending.set()
        self._thread.join()
        self._client.close()
        self._admin.close()


def replicas() -> int:
    """How many replicas run."""
    (deployment,) = serve.status().applications["measuring"].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def main() -> None:
    with pulsar_ray.Client() as client:
        client.subscribe(DOCUMENTS, SUBSCRIPTION, pulsar_ray.ConsumerType.Shared).close()
        lengths = client.subscribe(LENGTHS, "check")
        serve.start(proxy_location="Disabled")  # nobody asks over HTTP
        try:
            serve.run(Measuring.bind(), name="measuring", route_prefix=None)
            documents = client.create_producer(DOCUMENTS)
            for number in range(TOTAL):
                documents.send_async(b"x" * number, None, partition_key=str(number))
            documents.flush()

            measured: dict[str, int] = {}
            most = 1
            while len(measured) < TOTAL:
                message = lengths.receive(timeout_millis=120_000)
                measured[message.partition_key()] = int(message.data())
                lengths.acknowledge(message)
                if len(measured) % 20 == 0:
                    most = max(most, replicas())
            assert measured == {str(number): number for number in range(TOTAL)}
            while replicas() > 1:
                time.sleep(0.2)
            print(f"{TOTAL} documents measured; 1 replica grew to {most}, and shrank to 1 again")
        finally:
            serve.shutdown()


if __name__ == "__main__":
    main()
