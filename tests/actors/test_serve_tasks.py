"""Tasks of Ray Serve in a topic: run, tried again, failed, unreadable, cancelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

PROGRAM = """
import os, sys, time
import ray
from ray import serve
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler
import pulsar_ray
from pulsar_ray.admin import Admin

ray.init(num_cpus=2, include_dashboard=False)
CLIENT = {"data_dir": os.path.abspath("store"), "allow_founding": True, "operation_timeout_seconds": 120}
config = TaskProcessorConfig(
    queue_name="jobs",
    adapter="pulsar_ray.serve.TaskQueue",
    adapter_config={"retry_delay_seconds": 0.1, "client": CLIENT},
    max_retries=2,
)

@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0})
@task_consumer(task_processor_config=config)
class Jobs:
    @task_handler(name="add")
    def add(self, a, b=0):
        return a + b

    @task_handler(name="fail")
    def fail(self):
        open("tries", "a").write("x")
        if not os.path.exists("mended"):
            raise RuntimeError("as always")
        return "mended"

with pulsar_ray.Client(**CLIENT) as client:
    queue = instantiate_adapter_from_config(config)
    cancelled = queue.enqueue_task_sync("add", [1])
    queue.cancel_task_sync(cancelled.id)
    early = queue.enqueue_task_sync("add", [1], {"b": 2})
    serve.run(Jobs.bind())

    def ended(task):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = queue.get_task_status_sync(task.id)
            if found.status in ("SUCCESS", "FAILURE", "REVOKED"):
                return found
            time.sleep(0.05)
        raise AssertionError(found)

    print("early:", ended(early).status, ended(early).result)
    failed = ended(queue.enqueue_task_sync("fail"))
    print("failed:", failed.status, failed.result, os.path.getsize("tries"))
    print("unknown:", ended(queue.enqueue_task_sync("nothing")).status)
    print("cancelled:", ended(cancelled).status)
    try:
        queue.enqueue_task_sync("add", [object()])
    except pulsar_ray.InvalidMessage as error:
        print("refused:", error)
    deadline = time.monotonic() + 60
    # The original is acknowledged behind its letter, so it may be in hand for a moment more.
    is_over = lambda seen: seen["failed"] == 1 and not seen["in_hand"]
    while not is_over(metrics := queue.get_metrics_sync()) and time.monotonic() < deadline:
        time.sleep(0.1)
    print("metrics:", metrics)
    open("mended", "w").close()
    with Admin(data_dir=CLIENT["data_dir"]) as admin:
        admin.topics.redrive("jobs-failed")
    deadline = time.monotonic() + 60
    while queue.get_task_status_sync(failed.id).status != "SUCCESS" and time.monotonic() < deadline:
        time.sleep(0.1)
    print("redriven:", queue.get_task_status_sync(failed.id).result)
    print("health:", len(queue.health_check_sync()))
    many = [queue.enqueue_task_sync("add", [number]) for number in range(20)]
    print("many:", sum(ended(task).result for task in many))
    queue.stop_consumer()

    import asyncio
    import threading

    slow = config.model_copy(update={"queue_name": "slow", "max_retries": 1})
    begun, may_end = threading.Semaphore(0), threading.Event()

    def block():
        begun.release()
        may_end.wait(60)

    async def answer():
        return "by a coroutine"

    asking = instantiate_adapter_from_config(slow)
    task = asyncio.run(asking.enqueue_task_async("job"))
    for _ in range(3):
        leaving = instantiate_adapter_from_config(slow)
        leaving.register_task_handle(block, "job")
        leaving.start_consumer()
        assert begun.acquire(timeout=60)
        leaving.stop_consumer(timeout=0.1)
    staying = instantiate_adapter_from_config(slow)
    staying.register_task_handle(answer, "job")
    staying.start_consumer()
    queue = asking
    found = ended(task)
    print("left:", found.status, found.result, asyncio.run(asking.get_metrics_async())["failed"])
    may_end.set()
    staying.stop_consumer()
    asking.stop_consumer()
serve.shutdown()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tasks_run_are_tried_again_and_set_aside(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    print(ran.stderr[-6000:])
    said = dict(line.split(": ", 1) for line in ran.stdout.splitlines() if ": " in line)
    assert said["early"] == "SUCCESS 3"
    assert said["failed"] == "FAILURE RuntimeError: as always 3"
    assert said["unknown"] == "FAILURE"
    assert said["cancelled"] == "REVOKED"
    assert "are not JSON" in said["refused"]
    metrics = "{'queue_length': 0, 'in_hand': 0, 'consumers': 1, 'failed': 1, 'unprocessable': 1}"
    assert said["metrics"] == metrics
    assert said["redriven"] == "mended"
    assert said["health"] == "1"
    assert said["many"] == str(sum(range(20)))
    assert said["left"] == "SUCCESS by a coroutine 0"
    assert ran.returncode == 0
