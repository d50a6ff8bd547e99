"""Pulsar's own command line against the gateway: its usual commands, as scripts have them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_ray.client.client import Client
from tests.unit.gateway.conftest import Http

VERSION = "4.0.8"
MAVEN, JAVA = shutil.which("mvn"), shutil.which("java")
TOOL = "org.apache.pulsar.admin.cli.PulsarAdminTool"
_POM = """\
<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.pulsar</groupId><artifactId>pulsar-client-tools</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (MAVEN and JAVA), reason="needs mvn and java, for pulsar-admin's jars"),
]

_DONE = r"\A\s*\Z"
COMMANDS = (
    ("clusters list", r"^standalone$"),
    ("tenants create acme --admin-roles lead", _DONE),
    ("tenants update acme --admin-roles lead,boss", _DONE),
    ("tenants get acme", r'"adminRoles" : \[ "boss", "lead" \]'),
    ("tenants list", r"^acme$"),
    ("namespaces create acme/ns", _DONE),
    ("namespaces list acme", r"^acme/ns$"),
    ("namespaces set-retention acme/ns --time 1h --size 100M", _DONE),
    ("namespaces get-retention acme/ns", r'"retentionTimeInMinutes" : 60,\s+"retentionSizeInMB" : 100'),
    ("namespaces policies acme/ns", r'"retentionTimeInMinutes" : 60'),
    ("namespaces set-message-ttl acme/ns -ttl 100", _DONE),
    ("namespaces get-message-ttl acme/ns", r"^100$"),
    ("namespaces set-backlog-quota acme/ns -l 10M -p producer_request_hold", _DONE),
    ("namespaces get-backlog-quotas acme/ns", r"producer_request_hold"),
    ("namespaces remove-backlog-quota acme/ns", _DONE),
    ("namespaces set-deduplication acme/ns -e", _DONE),
    ("namespaces get-deduplication acme/ns", r"^true$"),
    ("namespaces set-max-consumers-per-topic acme/ns -c 5", _DONE),
    ("namespaces get-max-consumers-per-topic acme/ns", r"^5$"),
    ("namespaces set-delayed-delivery acme/ns -e -t 1s", _DONE),
    ("namespaces set-schema-compatibility-strategy acme/ns -c FULL", _DONE),
    ("namespaces get-schema-compatibility-strategy acme/ns", r"^FULL$"),
    ("namespaces set-compaction-threshold acme/ns -t 10M", _DONE),
    ("namespaces get-compaction-threshold acme/ns", r"^10485760$"),
    ("namespaces set-auto-topic-creation acme/ns -e -t partitioned -n 2", _DONE),
    ("namespaces get-auto-topic-creation acme/ns", r'"defaultNumPartitions" : 2'),
    ("namespaces grant-permission acme/ns --role shop --actions produce,consume", _DONE),
    ("namespaces permissions acme/ns", r"shop\s+\[.*produce"),
    ("namespaces revoke-permission acme/ns --role shop", _DONE),
    ("topics create acme/ns/t", _DONE),
    ("topics list acme/ns", r"^persistent://acme/ns/t$"),
    ("topics create-subscription acme/ns/t -s s -m earliest", _DONE),
    ("topics subscriptions acme/ns/t", r"^s$"),
    ("PUBLISH", ""),
    ("topics stats acme/ns/t", r'"msgBacklog" : 3,'),
    ("topics stats-internal acme/ns/t", r'"numberOfEntries" : 3'),
    ("topics peek-messages acme/ns/t -s s -n 1", r"m0"),
    ("topics examine-messages acme/ns/t -i earliest -m 2", r"m1"),
    ("topics get-message-id acme/ns/t -d 2020-01-01T00:00:00Z", r'"entryId" : 0|:0:-1'),
    ("topics skip acme/ns/t -s s -n 1", _DONE),
    ("topics peek-messages acme/ns/t -s s -n 1", r"m1"),
    ("topics reset-cursor acme/ns/t -s s -t 1h", _DONE),
    ("topics peek-messages acme/ns/t -s s -n 1", r"m0"),
    ("topics clear-backlog acme/ns/t -s s", _DONE),
    ("topics expire-messages acme/ns/t -s s -t 1", None),
    ("topics last-message-id acme/ns/t", r'"entryId" : 2'),
    ("topics compact acme/ns/t", r"compaction requested"),
    ("topics compaction-status acme/ns/t", r"."),
    ("topics lookup acme/ns/t", None),
    ("topics bundle-range acme/ns/t", r"0x00000000_0xffffffff"),
    ("topics unsubscribe acme/ns/t -s s", _DONE),
    ("topics unload acme/ns/t", _DONE),
    ("topics truncate acme/ns/t", None),
    ("topics create-partitioned-topic acme/ns/p -p 2", _DONE),
    ("topics update-partitioned-topic acme/ns/p -p 3", _DONE),
    ("topics get-partitioned-topic-metadata acme/ns/p", r'"partitions" : 3'),
    ("topics list-partitioned-topics acme/ns", r"^persistent://acme/ns/p$"),
    ("topics partitioned-stats acme/ns/p --per-partition", r"persistent://acme/ns/p-partition-2"),
    ("topicPolicies set-retention acme/ns/t -t 1h -s 10M", _DONE),
    ("topicPolicies get-retention acme/ns/t", r'"retentionSizeInMB" : 10'),
    ("topicPolicies set-max-consumers acme/ns/t -c 3", _DONE),
    ("topicPolicies get-max-consumers acme/ns/t", r"^3$"),
    ("topics grant-permission acme/ns/t --role x --actions produce", _DONE),
    ("topics permissions acme/ns/t", r"x\s+\[.*produce"),
    ("topics revoke-permission acme/ns/t --role x", _DONE),
    ("topics terminate acme/ns/t", r"terminated at"),
    ("brokers list standalone", r"."),
    ("brokers version", r"."),
    ("brokers healthcheck", r"^ok$"),
    ("brokers get-runtime-config", r"."),
    ("brokers leader-broker", r"serviceUrl"),
    ("topics delete acme/ns/t", _DONE),
    ("topics delete-partitioned-topic acme/ns/p", _DONE),
    ("namespaces unload acme/ns", _DONE),
    ("namespaces delete acme/ns", _DONE),
    ("tenants delete acme", _DONE),
)
REFUSED = (
    ("topics stats acme/ns/nowhere", r"Reason: the topic persistent://acme/ns/nowhere does not exist"),
    ("tenants get nobody", r"Reason: .+"),
    ("schemas get public/default/nothing", r"Reason: .+"),
    ("functions list", r"Reason: pulsar_ray has no functions"),
)


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pulsar-admin as it is published."""
    directory = tmp_path_factory.mktemp("jars")
    (directory / "pom.xml").write_text(_POM.format(version=VERSION))
    command = [str(MAVEN), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory}/lib"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return directory / "lib"


class Tool:
    """Runs pulsar-admin against a gateway."""

    def __init__(self, jars: Path, url: str) -> None:
        self._jars = jars
        self._settings = jars.parent / "client.conf"
        self._settings.write_text(f"webServiceUrl={url}\nbrokerServiceUrl=pulsar://localhost:6650\n")

    def __call__(self, command: str) -> tuple[int, str]:
        """Return the exit code and what it wrote, without remarks of its logging."""
        arguments = [str(JAVA), "-cp", f"{self._jars}/*", TOOL, str(self._settings), *command.split()]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        return done.returncode, "\n".join(line for line in lines if not line.startswith("SLF4J"))


def test_its_usual_commands_do_what_they_say(http_server: Http, jars: Path) -> None:
    tool = Tool(jars, http_server.url)
    wrong = []
    for command, pattern in COMMANDS:
        if command == "PUBLISH":
            with Client._on(http_server.cluster) as client, client.create_producer("acme/ns/t") as producer:
                for number in range(3):
                    producer.send(b"m%d" % number)
            continue
        code, text = tool(command)
        if code or (pattern is not None and not re.search(pattern, text, re.MULTILINE)):
            wrong.append(f"pulsar-admin {command}: {code}: {text[-500:]}")
    assert wrong == []


def test_refusals_are_its_errors_with_our_reasons(http_server: Http, jars: Path) -> None:
    tool = Tool(jars, http_server.url)
    for command, reason in REFUSED:
        code, text = tool(command)
        assert code == 1, command
        assert re.search(reason, text), text[-500:]
