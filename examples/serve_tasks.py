"""Run tasks of a Ray Serve deployment from a topic, scaled by their number.

    python examples/serve_tasks.py

Neither Celery nor Redis: tasks are enqueued durably, tried again where a handler fails, and given back by
replicas that are taken away. Needs Ray 2.51 or later, and the extra `[serve]`.
"""

from __future__ import annotations

import time
from pathlib import Path

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import pulsar_ray
from pulsar_ray.serve import QueueLengthPolicy, TaskQueueConfig

QUEUE = "thumbnails"
TOTAL = 200
PER_REPLICA = 40
MOST_REPLICAS = 3
WORK_S = 0.05
CONFIG = TaskProcessorConfig(
    queue_name=QUEUE,
    adapter="pulsar_ray.serve.TaskQueue",
    adapter_config=TaskQueueConfig(retry_delay_seconds=0.1),
    max_retries=3,
)


@serve.deployment(
    ray_actor_options={"num_cpus": 0},
    autoscaling_config=AutoscalingConfig(
        min_replicas=1,
        max_replicas=MOST_REPLICAS,
        target_ongoing_requests=PER_REPLICA,
        upscale_delay_s=0,
        downscale_delay_s=1,
        metrics_interval_s=0.5,
        look_back_period_s=1,
        policy=AutoscalingPolicy(
            policy_function=QueueLengthPolicy,
            policy_kwargs={"queue_name": QUEUE, "poll_interval_s": 0.5},
        ),
    ),
)
@task_consumer(task_processor_config=CONFIG)
class Thumbnails:
    """Shrinks pictures, and fails at each tenth one the first time."""

    @task_handler(name="shrink")
    def shrink(self, number: int, scratch: str) -> int:
        """Return the size of a picture's thumbnail."""
        tried = Path(scratch) / str(number)
        if number % 10 == 0 and not tried.exists():
            tried.touch()
            raise RuntimeError(f"picture {number} cannot be read just now")
        time.sleep(WORK_S)  # a model would compute here
        return number // 2


def replicas() -> int:
    """How many replicas run."""
    (deployment,) = serve.status().applications[QUEUE].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def main() -> None:
    scratch = Path("tried").absolute()
    scratch.mkdir(exist_ok=True)
    with pulsar_ray.Client():
        queue = instantiate_adapter_from_config(CONFIG)
        tasks = [queue.enqueue_task_sync("shrink", [number, str(scratch)]) for number in range(TOTAL)]
        serve.start(proxy_location="Disabled")  # nobody asks over HTTP
        try:
            serve.run(Thumbnails.bind(), name=QUEUE, route_prefix=None)
            most, sizes = 1, 0
            for task in tasks:
                while (found := queue.get_task_status_sync(task.id)).status != "SUCCESS":
                    assert found.status != "FAILURE", found
                    most = max(most, replicas())
                    time.sleep(0.2)
                sizes += found.result
            assert sizes == sum(number // 2 for number in range(TOTAL))
            assert queue.get_metrics_sync()["failed"] == 0
            while replicas() > 1:
                time.sleep(0.2)
            tried = f"{TOTAL} tasks done, {TOTAL // 10} at the second try"
            print(f"{tried}; 1 replica grew to {most}, and shrank again")
        finally:
            queue.stop_consumer()
            serve.shutdown()


if __name__ == "__main__":
    main()
