"""Which broker `status` and `stop` mean, where both a Ray cluster's and an embedded one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.cli import broker
from pulsar_ray.cli.target import Target
from pulsar_ray.launch.embedded import EmbeddedRecord
from tests.unit.cli.conftest import Run


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an embedded broker; a Ray cluster with a broker runs on this machine as well."""
    record = EmbeddedRecord("127.0.0.1:1", 4711, 0, "http://127.0.0.1:2", "")

    def read(data_dir: Path) -> EmbeddedRecord | None:
        return record if data_dir == tmp_path else None

    monkeypatch.setattr(broker, "join_ray", lambda _: True)
    monkeypatch.setattr(broker, "stop_broker", lambda: True)
    monkeypatch.setattr(broker, "read_record", read)
    monkeypatch.setattr(broker, "stop_embedded", read)
    return tmp_path


def test_stop_means_the_embedded_broker_of_a_directory_that_is_given(served: Path, run: Run) -> None:
    result = run(Target(), "stop", "--data-dir", str(served))
    assert (result.exit_code, result.output) == (0, f"the embedded broker of {served} has ended\n")
    result = run(Target(data_dir=str(served)), "stop")
    assert result.output == f"the embedded broker of {served} has ended\n"


@pytest.mark.parametrize("arguments", [(), ("--data-dir", "/nobody/serves/it")])
def test_stop_means_the_broker_of_the_cluster_otherwise(
    served: Path, run: Run, arguments: tuple[str, ...]
) -> None:
    result = run(Target(), "stop", *arguments)
    assert (result.exit_code, result.output) == (0, "the broker of this Ray cluster has ended\n")


@pytest.mark.parametrize(
    ("address", "mode", "who"),
    [
        ("127.0.0.1:1", "token", None),
        ("127.0.0.1:1", "disabled", "every user of this machine may use this broker and run code as you"),
        ("[::1]:1", "", "every user of this machine"),
        ("192.0.2.1:1", "", "whoever reaches the ports of its Ray"),
    ],
)
def test_status_says_to_whom_an_embedded_broker_is_open(
    address: str, mode: str, who: str | None, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = EmbeddedRecord(address, 4711, 0, "http://127.0.0.1:2", mode)
    monkeypatch.setattr(broker, "read_record", lambda _: record)
    result = run(Target(), "status", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    assert ("warning" in result.output) == (who is not None)
    assert (who or "") in result.output


def test_status_means_the_embedded_broker_of_a_directory_that_is_given(served: Path, run: Run) -> None:
    result = run(Target(), "status", "--data-dir", str(served))
    assert result.exit_code == 0
    assert "an embedded broker runs, process 4711" in result.output
