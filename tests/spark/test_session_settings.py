from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.java import Java
from pulsar_ray_spark.session_settings import AskedSettings

JAVA = Java(Path("/opt/java"), 17)


def test_defaults_leave_room_for_others() -> None:
    settings = AskedSettings().complete()
    assert (settings.app_name, settings.num_executors, settings.executor_cores) == ("pulsar-ray", 1, 1)
    conf = settings.configuration(JAVA, "/usr/bin/python3")
    assert conf["spark.ray.raydp_spark_master.actor.resource.CPU"] == "0"
    assert conf["spark.sql.execution.arrow.pyspark.enabled"] == "true"
    assert conf["spark.pyspark.python"] == "/usr/bin/python3"


def test_spark_settings_win_and_java_options_are_added_to() -> None:
    asked = AskedSettings(
        conf={"spark.locality.wait": "1s", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC"}
    )
    conf = asked.complete().configuration(JAVA, "python3")
    assert conf["spark.locality.wait"] == "1s"
    options = conf["spark.executor.extraJavaOptions"]
    assert options.endswith(" -XX:+UseSerialGC")
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in options
    master = conf["spark.ray.raydp_app_master.extraJavaOptions"]
    assert master.endswith("env-vars.PATH=/opt/java/bin:${PATH}")


def test_shuffles_of_streams_have_a_partition_for_each_core_unless_asked_otherwise() -> None:
    conf = AskedSettings(num_executors=3, executor_cores=2).complete().configuration(JAVA, "python3")
    assert conf["spark.sql.shuffle.partitions"] == "6"
    assert conf["spark.sql.adaptive.coalescePartitions.initialPartitionNum"] == "200"
    asked = AskedSettings(conf={"spark.sql.shuffle.partitions": "64"})
    conf = asked.complete().configuration(JAVA, "python3")
    assert conf["spark.sql.shuffle.partitions"] == "64"
    assert "spark.sql.adaptive.coalescePartitions.initialPartitionNum" not in conf


@pytest.mark.parametrize(
    ("again", "named"),
    [
        (AskedSettings(), []),
        (AskedSettings("another name"), []),
        (AskedSettings(num_executors=2, executor_cores=1), []),
        (AskedSettings(executor_cores=4), ["executor_cores is 1, not 4"]),
        (AskedSettings(executor_memory="2g"), ["executor_memory is '1g', not '2g'"]),
        (AskedSettings(conf={"spark.a": "1"}), []),
        (
            AskedSettings(conf={"spark.a": "2", "spark.b": "3"}),
            ["spark.a is 1, not 2", "spark.b is not given, not 3"],
        ),
    ],
)
def test_only_what_is_asked_for_otherwise_differs(again: AskedSettings, named: list[str]) -> None:
    running = AskedSettings(num_executors=2, conf={"spark.a": "1"}).complete()
    assert running.differences(again) == named


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_counts_are_whole_numbers_from_1(count: object) -> None:
    with pytest.raises(InvalidConfiguration, match="num_executors is"):
        AskedSettings(num_executors=count).check()  # type: ignore[arg-type]


def test_nothing_asked_for_is_empty() -> None:
    assert AskedSettings().is_empty()
    assert AskedSettings(conf={}).is_empty()
    assert not AskedSettings("name").is_empty()
    assert not AskedSettings(conf={"spark.a": "1"}).is_empty()
