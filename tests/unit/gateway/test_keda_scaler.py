"""KEDA's own Pulsar scaler against the gateway, built of KEDA's sources with a program around it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from tests.unit.gateway.conftest import Http

KEDA = "github.com/kedacore/keda/v2"
VERSION = "v2.21.0"
GO = shutil.which("go")
_OF_KEDA = ("pulsar_scaler.go", "scaler.go")
_MAIN = """\
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
)

func main() {
	scaler, err := NewPulsarScaler(&scalersconfig.ScalerConfig{
		GlobalHTTPTimeout: 30 * time.Second,
		AuthParams:        map[string]string{},
		TriggerMetadata: map[string]string{
			"adminURL": os.Args[1], "topic": os.Args[2], "subscription": os.Args[3],
			"isPartitionedTopic": os.Args[4], "msgBacklogThreshold": "5",
		},
	})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	values, active, err := scaler.GetMetricsAndActivity(context.Background(), "backlog")
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(values[0].Value.String(), active)
}
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not GO, reason="needs go, for KEDA's sources"),
]


def go(where: Path, *arguments: str) -> str:
    """Run go in a folder; what it prints."""
    done = subprocess.run(
        [str(GO), *arguments], cwd=where, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def scaler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; KEDA's versions of what it stands on."""
    where = tmp_path_factory.mktemp("keda")
    found = Path(json.loads(go(where, "mod", "download", "-json", f"{KEDA}@{VERSION}"))["Dir"])
    for name in _OF_KEDA:
        source = (found / "pkg" / "scalers" / name).read_text()
        (where / name).write_text(source.replace("package scalers", "package main", 1))
    requirements = re.sub(r"(?m)^module .*$", "module scaler", (found / "go.mod").read_text())
    (where / "go.mod").write_text(f"{requirements}\nrequire {KEDA} {VERSION}\n")
    shutil.copyfile(found / "go.sum", where / "go.sum")
    (where / "main.go").write_text(_MAIN)
    go(where, "build", "-mod=mod", "-o", "scaler", ".")
    return where / "scaler"


def test_the_scaler_of_keda_sees_the_backlog(scaler: Path, http_server: Http) -> None:
    def ask(topic: str, subscription: str, is_partitioned: bool) -> str:
        command = (str(scaler), http_server.url, f"persistent://public/default/{topic}", subscription)
        done = subprocess.run(
            [*command, str(is_partitioned).lower()], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    admin, client = Admin._on(http_server.cluster), Client._on(http_server.cluster)
    admin.topics.create_topic("plain")
    admin.topics.create_partitioned_topic("parts", 3)
    for topic in ("plain", "parts"):
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        assert ask(topic, "s", topic == "parts") == "0 false"
        for number in range(7):
            producer.send(str(number).encode())
        assert ask(topic, "s", topic == "parts") == "7 true"
        consumer.close()
    assert "subscription found! other" in ask("plain", "other", False)
    assert "(404)" in ask("missing", "s", False)
    client.close()
    admin.close()
