from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray import Client
from pulsar_ray.launch.start import stop_broker
from pulsar_ray_spark import session
from tests.docs.new_user import QUICK_JVMS

_topics = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # py4j leaves its connections to the garbage collector.
    ignored = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(ignored)


@pytest.fixture(scope="package", autouse=True)
def _quick_jvms() -> Iterator[None]:
    """For all that this process and its programs start, their Rays included."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JVMS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One Ray and one Spark session for all tests; readers find the modules of tests as this process does."""
    path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=512 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    yield session.start("tests", executor_memory="1g", conf=conf)
    session.stop()
    ray.shutdown()


@pytest.fixture(scope="package")
def client(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a broker on the Ray of the session."""
    with Client(data_dir=str(tmp_path_factory.mktemp("broker"))) as client:
        client.get_topic_partitions("warm-up")
        yield client
    stop_broker()


@pytest.fixture
def topic() -> str:
    """A topic that no test has used before, this one's first try included."""
    return f"spark-{next(_topics)}"
