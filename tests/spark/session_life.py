"""`python -m tests.spark.session_life`: start, kill, find and stop sessions, and look what is left."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest
import ray
import raydp
from ray.util.state import list_actors

import pulsar_ray
import pulsar_ray_spark
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.errors import SparkAlreadyRunning, SparkStopped

DONE = "nothing is left"
QUICK = {"spark.ui.enabled": "false"}


def jvms() -> list[psutil.Process]:
    """The JVMs of this machine that this process or its Ray started."""
    user = psutil.Process().username()
    return [
        p for p in psutil.process_iter(["name", "username"]) if p.info == {"name": "java", "username": user}
    ]


def living_actors() -> set[str]:
    address = ray.get_runtime_context().gcs_address  # another Ray may run on this machine
    actors: Any = list_actors(address, filters=[("state", "!=", "DEAD")], limit=1000)
    return {actor.class_name for actor in actors}


def free_cpus() -> float:
    return float(ray.available_resources()["CPU"])  # type: ignore[no-untyped-call]


def main() -> None:
    os.environ["PULSAR_RAY_EMBEDDED_DASHBOARD"] = "1"  # which lists actors
    # Without Ray: joined as a client does.
    spark = pulsar_ray_spark.start("life", conf=QUICK)
    with pulsar_ray.Client() as client:
        client.subscribe("life", "all").close()
        client.create_producer("life").send_many([b"%d" % number for number in range(1000)])
        frame = pulsar_ray_spark.read(spark, "life")
        assert frame.count() == 1000
        actors_with_spark = living_actors()
        assert "RayDPSparkMaster" in actors_with_spark
        pulsar_ray_spark.stop()
        gone_within_a_moment(actors_with_spark)

        # Its JVM is killed under it; the next start does not find a corpse.
        spark = pulsar_ray_spark.start("life", conf=QUICK)
        me = psutil.Process()
        (jvm,) = [child for child in me.children() if child.name() == "java"]
        jvm.kill()
        jvm.wait()
        with pytest.raises(SparkStopped, match="was stopped"):
            pulsar_ray_spark.start(spark=spark)
        again = pulsar_ray_spark.start("life", conf=QUICK, executor_memory="900m")
        assert again is not spark
        assert pulsar_ray_spark.read(again, "life").count() == 1000
        again.stop()  # behind our back
        again = pulsar_ray_spark.start("life", conf=QUICK)
        assert again.range(3).count() == 3
        pulsar_ray_spark.stop()
        gone_within_a_moment(actors_with_spark)

        of_raydp(client)
        gone_within_a_moment(actors_with_spark)

    # Ray is left before the session is stopped, which must not start another.
    pulsar_ray_spark.start("life", conf=QUICK)
    ray.shutdown()
    pulsar_ray_spark.stop()
    assert not ray.is_initialized()
    wait_until(lambda: not jvms(), 60, "no JVM")
    print(DONE)


def of_raydp(client: pulsar_ray.Client) -> None:
    """A session that RayDP was asked for stays when ours are stopped."""
    from pulsar_ray_spark import session  # noqa: PLC0415
    from pulsar_ray_spark.java import find_java  # noqa: PLC0415
    from pulsar_ray_spark.session_settings import AskedSettings  # noqa: PLC0415

    java = find_java()
    with session._environment(java, "python3"):
        theirs = raydp.init_spark(
            "theirs", 1, 1, "900m", configs=AskedSettings().complete().configuration(java, "python3")
        )
    with pytest.raises(SparkAlreadyRunning, match="did not start"):
        pulsar_ray_spark.start()
    assert pulsar_ray_spark.start(spark=theirs) is theirs
    assert pulsar_ray_spark.read(theirs, "life").count() == 1000
    pulsar_ray_spark.stop()
    assert theirs.range(3).count() == 3
    raydp.stop_spark()
    session._shut_jvm()


def gone_within_a_moment(with_spark: set[str]) -> None:
    """Spark's actors, processes and CPUs; the broker's actors stay."""
    total = float(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    wait_until(lambda: free_cpus() == total, 30, "all CPUs free")
    wait_until(lambda: not jvms(), 30, "no JVM")
    spark_actors = {name for name in with_spark if "Spark" in name or "raydp" in name.lower()}
    wait_until(lambda: not spark_actors & living_actors(), 30, f"none of {spark_actors}")
    wait_until(lambda: "RangeReader" not in living_actors(), 30, "no reader")


if __name__ == "__main__":
    main()
