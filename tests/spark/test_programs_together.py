"""Several programs on one Ray, each with a Spark session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray.launch.embedded import stop_embedded

pytestmark = pytest.mark.timeout(600)

_SAID = "said: "
_TOGETHER = """
import sys
import pulsar_ray
import pulsar_ray_spark

data_dir, name = sys.argv[1:]
# Both executors have room on one core.
conf = {"spark.ui.enabled": "false", "spark.ray.raydp_spark_executor.actor.resource.cpu": "0.4"}
spark = pulsar_ray_spark.start("report", conf=conf, service_url="local", data_dir=data_dir)
client = pulsar_ray.Client("local", data_dir=data_dir)
client.subscribe(name, "all").close()


def say(text):
    print("said:", text, flush=True)
    sys.stdin.readline()


say("runs")  # as long as the other one
frame = spark.range(1000).selectExpr("cast(id as string) as value")
pulsar_ray_spark.write(frame, name)
say(pulsar_ray_spark.read(spark, name).count())
pulsar_ray_spark.stop()
client.close()
"""

_IN_ONE_NAMESPACE = """
import sys
import ray
import pulsar_ray_spark
from pulsar_ray_spark.errors import SparkAlreadyRunning

address, namespace = sys.argv[1:]
ray.init(address, namespace=namespace, log_to_driver=False)
for name in ("tests", "another"):  # the name of the session that runs, and one that is free
    try:
        pulsar_ray_spark.start(name)
    except SparkAlreadyRunning as error:
        print("said:", error)
"""


@contextmanager
def program(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """What the program says next; its JVM writes there too."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_SAID):
            return line.removeprefix(_SAID).strip()
    return f"nothing, and ended with {process.wait(60)}"


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.long
def test_two_programs_run_spark_side_by_side_on_one_embedded_broker(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    try:
        with (
            program(_TOGETHER, str(data_dir), "first") as first,
            program(_TOGETHER, str(data_dir), "second") as second,
        ):
            both = (first, second)
            assert [said(each) for each in both] == ["runs", "runs"]
            for each in both:
                go_on(each)
            assert [said(each) for each in both] == ["1000", "1000"]
            for each in both:
                go_on(each)
            assert [each.wait(120) for each in both] == [0, 0]
    finally:
        stop_embedded(data_dir)


def test_a_second_session_in_one_namespace_of_ray_is_refused_with_the_remedy(spark: SparkSession) -> None:
    context = ray.get_runtime_context()
    with program(_IN_ONE_NAMESPACE, context.gcs_address, str(context.namespace)) as process:
        output, _ = process.communicate(timeout=300)
    refusals = [line for line in output.splitlines() if line.startswith(_SAID)]
    assert len(refusals) == 2
    for refusal in refusals:
        assert f"Spark session in the Ray namespace '{context.namespace}'" in refusal
        assert "join Ray with another namespace" in refusal
    assert spark.range(3).count() == 3, "the session that runs goes on"
