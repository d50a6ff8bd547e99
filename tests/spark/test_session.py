from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark import session
from pulsar_ray_spark.errors import SparkAlreadyRunning
from tests.ending_processes import command_lines


def test_python_workers_run_on_this_interpreter(spark: SparkSession) -> None:
    @F.udf("string")
    def interpreter(_: int) -> str:
        return sys.executable

    assert spark.range(1).select(interpreter("id").alias("it")).collect() == [Row(it=sys.executable)]


def test_python_workers_can_use_ray(spark: SparkSession) -> None:
    address = ray.get_runtime_context().gcs_address

    @F.udf("long")
    def through_ray(number: int) -> int:
        ray.init(address=address, ignore_reinit_error=True)
        return int(ray.get(ray.put(number)))

    assert [row[0] for row in spark.range(3).coalesce(1).select(through_ray("id")).collect()] == [0, 1, 2]


def test_arrow_and_pandas_go_both_ways(spark: SparkSession) -> None:
    frame = spark.range(5).mapInArrow(lambda batches: batches, "id long")
    table: Any = frame.toPandas()
    assert table["id"].tolist() == [0, 1, 2, 3, 4]
    assert spark.createDataFrame(table).count() == 5


def test_spark_leaves_a_cpu_for_others(spark: SparkSession) -> None:
    # Of two: one executor has one, the master none.
    assert ray.available_resources()["CPU"] == 1  # type: ignore[no-untyped-call]


def test_the_environment_is_as_it_was(spark: SparkSession) -> None:
    assert "PYSPARK_PYTHON" not in os.environ


def test_running_jvms_have_left_nothing_on_the_disk(spark: SparkSession) -> None:
    loaded = []
    for process, command in command_lines(psutil.Process().children(recursive=True)).items():
        if Path(command.partition(" ")[0]).name == "java":
            loaded += [
                line.split(maxsplit=5)[5]
                for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                if "libcore_worker_library_java" in line and "session_" not in line
            ]
    directories = {Path(path).parent for path in loaded}
    assert len(directories) == 2, "the driver's and the app master's"
    assert not any(path.exists() for path in directories)


def test_a_second_start_gives_the_session_that_runs(spark: SparkSession) -> None:
    assert session.start() is spark
    assert session.start("another name", executor_memory="1g") is spark
    assert session.start(spark=spark) is spark


def test_a_second_start_with_other_settings_names_them(spark: SparkSession) -> None:
    with pytest.raises(SparkAlreadyRunning, match=r"executor_cores is 1, not 2.*stop it first"):
        session.start(executor_cores=2)
    with pytest.raises(InvalidConfiguration, match="keeps its settings"):
        session.start(spark=spark, executor_cores=2)


def test_it_starts_while_an_event_loop_runs(spark: SparkSession) -> None:
    """As a notebook's cell does."""

    async def cell() -> int:
        return session.start().range(7).count()

    assert asyncio.run(cell()) == 7


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="'executor_core' is no Spark setting"):
        session.start(conf={"executor_core": "2"})
