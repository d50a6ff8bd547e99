"""The files of examples/clusters: read by what they are written for, as far as that is without a cloud."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import jsonschema
import kubernetes_validate
import pytest
import yaml
from moto import mock_aws
from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.util import prepare_config, validate_config

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
REGION, ZONE = "eu-central-1", "eu-central-1a"
COMMANDS = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
KUBERNETES = "1.30.0"
_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
_GROUP = {"rayStartParams": _MAP, "template": {"type": "object"}}
_COUNT = {"type": "integer", "minimum": 0}
_SECRET = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"value": {"type": "string"}, "valueFrom": {"type": "object"}},
}
RAY_CLUSTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["headGroupSpec"],
    "properties": {
        "rayVersion": {"type": "string"},
        "enableInTreeAutoscaling": {"type": "boolean"},
        "suspend": {"type": "boolean"},
        "gcsFaultToleranceOptions": {
            "type": "object",
            "additionalProperties": False,
            "required": ["redisAddress"],
            "properties": {
                "redisAddress": {"type": "string"},
                "redisUsername": _SECRET,
                "redisPassword": _SECRET,
                "externalStorageNamespace": {"type": "string"},
            },
        },
        "headGroupSpec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["template"],
            "properties": {**_GROUP, "serviceType": {"type": "string"}, "enableIngress": {"type": "boolean"}},
        },
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["groupName", "minReplicas", "maxReplicas", "template"],
                "properties": {
                    **_GROUP,
                    "groupName": {"type": "string", "maxLength": 63},
                    "replicas": _COUNT,
                    "minReplicas": _COUNT,
                    "maxReplicas": _COUNT,
                    "numOfHosts": _COUNT,
                },
            },
        },
    },
}
"""The fields of a RayCluster's specification, ray.io/v1, of KubeRay 1.3; pods are Kubernetes' own."""


@pytest.fixture
def aws() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((CLUSTERS / "aws.yaml").read_text())
    return config


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTERS / "kuberay.yaml").read_text()))


@pytest.fixture(scope="module")
def claiming() -> ModuleType:
    """The program that takes a volume."""
    spec = importlib.util.spec_from_file_location("claim_volume", CLUSTERS / "claim_volume.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An EC2 without machines."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield boto3.client("ec2", region_name=REGION)


def machine(ec2: Any) -> str:
    (made,) = ec2.run_instances(
        ImageId=ec2.describe_images()["Images"][0]["ImageId"],
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": ZONE},
    )["Instances"]
    return str(made["InstanceId"])


def never() -> None:
    raise AssertionError("it waited")


def stores(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of whose pods each has a volume."""
    return [group for group in groups if group["template"]["spec"].get("volumes")]


# --- EC2 ---------------------------------------------------------------------------------------------------


def test_ray_takes_the_file_for_ec2(aws: dict[str, Any], ec2: Any) -> None:
    group = ec2.create_security_group(GroupName="pulsar-ray", Description="for the test")["GroupId"]
    for kind in aws["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"]
        kind["node_config"]["SecurityGroupIds"] = [group]
    prepared = prepare_config(aws)
    validate_config(prepared)
    made: dict[str, Any] = bootstrap_aws(prepared)  # type: ignore[no-untyped-call]
    kinds = made["available_node_types"]
    assert set(kinds) == {"head", "store", "compute"}
    for kind in kinds.values():
        assert kind["node_config"]["SubnetIds"]
        assert kind["node_config"]["SecurityGroupIds"] == [group]


def test_every_command_is_one_that_bash_reads(aws: dict[str, Any]) -> None:
    lists = [aws[name] for name in (*COMMANDS, "head_start_ray_commands", "worker_start_ray_commands")]
    lists += [kind.get("worker_setup_commands", []) for kind in aws["available_node_types"].values()]
    for command in (command for commands in lists for command in commands):
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_machines_with_a_store_are_not_scaled_and_as_many_as_there_are_volumes(aws: dict[str, Any]) -> None:
    store = aws["available_node_types"]["store"]
    assert store["min_workers"] == store["max_workers"]
    count = store["min_workers"] + 1
    (claims,) = {
        command
        for commands in (aws["head_setup_commands"], aws["worker_setup_commands"])
        for command in commands
        if "claim-volume" in command
    }
    assert f"--volumes {count} " in claims
    assert f"pulsar-ray start --expect-stores {count}" in aws["head_start_ray_commands"]
    # A type's own list takes the place of all others for workers.
    assert "worker_setup_commands" not in store
    assert aws["available_node_types"]["compute"]["worker_setup_commands"] == aws["setup_commands"]


def test_a_new_cluster_makes_its_volumes_and_no_more(claiming: ModuleType, ec2: Any) -> None:
    made = set()
    for _ in range(3):
        made.add(claiming.claim(ec2, "c", machine(ec2), ZONE, volumes=3, gib=10, wait=[None].pop))
    assert len(made) == 3
    with pytest.raises(AssertionError, match="it waited"):
        claiming.claim(ec2, "c", machine(ec2), ZONE, volumes=3, gib=10, wait=never)
    assert (
        len(ec2.describe_volumes(Filters=[{"Name": "tag:pulsar-ray-cluster", "Values": ["c"]}])["Volumes"])
        == 3
    )


def test_a_machine_has_its_volume_again_and_a_new_one_that_of_a_machine_that_is_gone(
    claiming: ModuleType, ec2: Any
) -> None:
    first = machine(ec2)
    volume = claiming.claim(ec2, "c", first, ZONE, volumes=1, gib=10, wait=lambda: None)
    assert claiming.claim(ec2, "c", first, ZONE, volumes=1, gib=10, wait=never) == volume
    second = machine(ec2)

    def first_ends() -> None:
        ec2.detach_volume(VolumeId=volume, InstanceId=first)

    assert claiming.claim(ec2, "c", second, ZONE, volumes=1, gib=10, wait=first_ends) == volume
    # Another cluster's are left alone.
    assert claiming.claim(ec2, "other", machine(ec2), ZONE, volumes=1, gib=10, wait=lambda: None) != volume


class Commands:
    """The programs that mount, of a machine with one disk."""

    def __init__(self, *, blank: bool) -> None:
        self.is_blank = blank
        self.is_mounted = False
        self.ran: list[str] = []

    def __call__(self, command: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        program, code, said = command[0], 0, ""
        self.ran.append(program)
        if program == "blkid":
            code, said = (2, "") if self.is_blank else (0, "1234-abcd\n")
        elif program == "mkfs.ext4":
            self.is_blank = False
        elif program == "mountpoint":
            code = 0 if self.is_mounted else 1
        elif program == "mount":
            self.is_mounted = True
        assert not check or code == 0
        return subprocess.CompletedProcess(command, code, said)


@pytest.mark.parametrize("blank", [True, False])
def test_only_a_blank_disk_is_formatted_and_each_is_mounted_at_boot(
    claiming: ModuleType, tmp_path: Path, blank: bool
) -> None:
    table, place = tmp_path / "fstab", tmp_path / "data"
    table.write_text(f"UUID=root / ext4 defaults 0 1\nUUID=former {place} ext4 defaults,nofail 0 2\n")
    commands = Commands(blank=blank)
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(4096) if blank else bytes(1024) + b"ext4")
    mounts: Callable[[], None] = lambda: claiming.mount(disk, place, "root", commands, table)  # noqa: E731
    mounts()
    assert ("mkfs.ext4" in commands.ran) == blank
    assert table.read_text().splitlines() == [
        "UUID=root / ext4 defaults 0 1",
        f"UUID=1234-abcd {place} ext4 defaults,nofail 0 2",
    ]
    commands.ran.clear()
    mounts()
    assert "mkfs.ext4" not in commands.ran
    assert "mount" not in commands.ran


def test_a_disk_that_cannot_be_read_is_not_formatted(claiming: ModuleType, tmp_path: Path) -> None:
    commands = Commands(blank=True)
    with pytest.raises(OSError, match="gone"):
        claiming.mount(tmp_path / "gone", tmp_path / "data", "root", commands, tmp_path / "fstab")
    assert commands.ran == []


def test_a_volume_too_many_is_nobodys(claiming: ModuleType, ec2: Any) -> None:
    for _ in range(2):
        claiming._make(ec2, "c", ZONE, 10)
    first, _ = claiming._volumes(ec2, "c", ZONE)
    assert claiming.claim(ec2, "c", machine(ec2), ZONE, volumes=1, gib=10, wait=never) == first["VolumeId"]
    with pytest.raises(AssertionError, match="it waited"):
        claiming.claim(ec2, "c", machine(ec2), ZONE, volumes=1, gib=10, wait=never)


def test_the_disk_is_the_one_with_the_volumes_id(claiming: ModuleType, tmp_path: Path) -> None:
    assert claiming.device_of("vol-0abc", tmp_path) is None
    disk = tmp_path / "disk" / "by-id" / "nvme-Amazon_Elastic_Block_Store_vol0abc"
    disk.parent.mkdir(parents=True)
    disk.touch()
    (tmp_path / "xvdf").touch()
    assert claiming.device_of("vol-0abc", tmp_path) == disk
    assert claiming.device_of("vol-0def", tmp_path) == tmp_path / "xvdf"


# --- Kubernetes --------------------------------------------------------------------------------------------


def test_kubernetes_and_kuberay_take_every_object(objects: list[dict[str, Any]]) -> None:
    (cluster,) = [each for each in objects if each["kind"] == "RayCluster"]
    assert cluster["apiVersion"] == "ray.io/v1"
    jsonschema.validate(cluster["spec"], RAY_CLUSTER)
    for each in objects:
        if each is not cluster:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pods = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "p"},
            "template": group["template"],
        }
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)


def test_each_store_has_a_volume_of_its_own_and_one_pod(objects: list[dict[str, Any]]) -> None:
    claims = {each["metadata"]["name"]: each for each in objects if each["kind"] == "PersistentVolumeClaim"}
    (cluster,) = [each["spec"] for each in objects if each["kind"] == "RayCluster"]
    workers = stores(cluster["workerGroupSpecs"])
    assert {(group["replicas"], group["minReplicas"], group["maxReplicas"]) for group in workers} == {
        (1, 1, 1)
    }
    used = [
        volume["persistentVolumeClaim"]["claimName"]
        for group in (cluster["headGroupSpec"], *workers)
        for volume in group["template"]["spec"]["volumes"]
    ]
    assert sorted(used) == sorted(claims)
    assert all(claim["spec"]["accessModes"] == ["ReadWriteOncePod"] for claim in claims.values())
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert f"--expect-stores {len(used)} " in head["lifecycle"]["postStart"]["exec"]["command"][-1]


def test_every_pulsar_ray_command_of_the_pods_is_one_that_there_is(objects: list[dict[str, Any]]) -> None:
    (cluster,) = [each["spec"] for each in objects if each["kind"] == "RayCluster"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    commands = [found for group in groups for found in _commands(group)]
    assert len(commands) >= 3 * 4
    for command in commands:
        script = " ".join(command[2:] if command[0] == "/bin/sh" else command)
        words = script.split(">")[0].split()
        if words[0] != "pulsar-ray":
            assert words[0] in ("ray", "wget"), script
            continue
        # With --help behind it, everything before it is read.
        program = str(Path(sys.executable).parent / words[0])
        done = subprocess.run([program, *words[1:], "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _commands(group: dict[str, Any]) -> Iterator[list[str]]:
    """All that a group's pods run by themselves."""
    spec = group["template"]["spec"]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        if "command" in container:
            yield container["command"]
        hooks = [*container.get("lifecycle", {}).values()]
        hooks += [container[probe] for probe in container if probe.endswith("Probe")]
        yield from (hook["exec"]["command"] for hook in hooks)
