"""Attach one of a cluster's EBS volumes to this EC2 machine, and mount it.

    sudo python claim_volume.py --cluster pulsar-ray --volumes 3 --gib 200 --mount /data --owner ubuntu

The cluster's volumes carry a tag with its name, and outlive the machines. A machine takes back the one it
has, or one that no machine has: the store of a machine that is gone is served again by the next one. A volume
is made only while there are fewer than --volumes; then, until one is free, this waits: the former machine may
be shutting down.
Needs boto3, and an instance profile that may ec2:DescribeVolumes, CreateVolume, CreateTags and AttachVolume.
"""

from __future__ import annotations

import argparse
import pwd
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

TAG = "pulsar-ray-cluster"
METADATA = "http://169.254.169.254/latest/"
DEVICE = "/dev/sdf"
"""The name for EC2.

A machine of today shows the volume as an NVMe disk, with its id in the name.
"""
FREE_DEADLINE_S = 900.0
DEVICE_DEADLINE_S = 120.0
LOOK_S = 5.0
TAKEN = {"VolumeInUse", "IncorrectState", "InvalidVolume.NotFound"}
"""Answers to an attach that another machine's came before."""


class NoVolume(Exception):
    """No volume became free in time."""


def claim(
    ec2: Any, cluster: str, instance: str, zone: str, volumes: int, gib: int, wait: Callable[[], None]
) -> str:
    """Attach a volume of the cluster to the instance, and return the volume's id.

    `wait` passes some time, and raises once it is too late. A volume lies in one zone: those of others are
    not seen.
    """
    while True:
        known = _volumes(ec2, cluster, zone)
        for volume in known:
            if any(each["InstanceId"] == instance for each in volume["Attachments"]):
                return str(volume["VolumeId"])
        # Never one too many, as machines make that come at the same time: the store of a machine that is gone
        # would be left behind for an empty one.
        for volume in known[:volumes]:
            if volume["State"] == "available" and _attach(ec2, volume["VolumeId"], instance):
                return str(volume["VolumeId"])
        if len(known) < volumes:
            _make(ec2, cluster, zone, gib)
        wait()


def _volumes(ec2: Any, cluster: str, zone: str) -> list[dict[str, Any]]:
    filters = [
        {"Name": f"tag:{TAG}", "Values": [cluster]},
        {"Name": "availability-zone", "Values": [zone]},
    ]
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=filters)
    # By age, so that everybody means the same ones by the first.
    return sorted(
        (volume for page in pages for volume in page["Volumes"]),
        key=lambda each: (each["CreateTime"], each["VolumeId"]),
    )


def _attach(ec2: Any, volume: str, instance: str) -> bool:
    try:
        ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device=DEVICE)
    except ClientError as error:
        if error.response["Error"]["Code"] in TAKEN:
            return False
        raise
    return True


def _make(ec2: Any, cluster: str, zone: str, gib: int) -> None:
    tags = [{"Key": TAG, "Value": cluster}, {"Key": "Name", "Value": f"{cluster} store"}]
    ec2.create_volume(
        AvailabilityZone=zone,
        Size=gib,
        VolumeType="gp3",
        Encrypted=True,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )


def device_of(volume: str, root: Path = Path("/dev")) -> Path | None:
    """Find the disk of an attached volume; None while the kernel does not show it."""
    nvme = root / "disk" / "by-id" / f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"
    for path in (nvme, root / "xvdf", root / "sdf"):
        if path.exists():
            return path
    return None


def is_blank(device: Path) -> bool:
    """Whether nothing was ever written at the disk's beginning.

    Raises OSError where that cannot be read: `blkid` ends alike for a disk without a file system and for one
    that it cannot read.
    """
    with device.open("rb") as disk:
        return not any(disk.read(1 << 20))


def mount(
    device: Path, place: Path, owner: str, run: Callable[..., Any], table: Path = Path("/etc/fstab")
) -> None:
    """Mount the disk, now and at each boot, for a user.

    A disk with a file system keeps what is on it.
    """
    if is_blank(device) and run(["blkid", "-p", str(device)], check=False).returncode == 2:
        run(["mkfs.ext4", "-q", "-m", "0", str(device)], check=True)
    place.mkdir(parents=True, exist_ok=True)
    uuid = run(["blkid", "-p", "-s", "UUID", "-o", "value", str(device)], check=True).stdout.strip()
    line = f"UUID={uuid} {place} ext4 defaults,nofail 0 2"
    lines = table.read_text().splitlines()
    if line not in lines:
        # No boot waits for another volume that was there before.
        kept = [each for each in lines if each.split()[1:2] != [str(place)] or each.startswith("#")]
        table.write_text("\n".join([*kept, line, ""]))
    if run(["mountpoint", "-q", str(place)], check=False).returncode != 0:
        run(["mount", str(place)], check=True)
    user = pwd.getpwnam(owner)
    run(["chown", f"{user.pw_uid}:{user.pw_gid}", str(place)], check=True)


def _metadata() -> dict[str, str]:
    request = urllib.request.Request(
        f"{METADATA}api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    token = urllib.request.urlopen(request, timeout=10).read().decode()
    found = {}
    for name in ("instance-id", "placement/region", "placement/availability-zone"):
        asked = urllib.request.Request(
            f"{METADATA}meta-data/{name}", headers={"X-aws-ec2-metadata-token": token}
        )
        found[name] = urllib.request.urlopen(asked, timeout=10).read().decode()
    return found


def _until(deadline_s: float, what: str) -> Callable[[], None]:
    deadline = time.monotonic() + deadline_s

    def wait() -> None:
        if time.monotonic() > deadline:
            raise NoVolume(f"{what} within {deadline_s:.0f} s")
        time.sleep(LOOK_S)

    return wait


def _run(command: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Claim and mount."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", required=True)
    parser.add_argument(
        "--volumes", type=int, required=True, help="of the cluster, one for each machine with a store"
    )
    parser.add_argument("--gib", type=int, default=200)
    parser.add_argument("--mount", type=Path, default=Path("/data"))
    parser.add_argument("--owner", default="ubuntu")
    given = parser.parse_args()
    here = _metadata()
    ec2 = boto3.client("ec2", region_name=here["placement/region"])
    volume = claim(
        *(
            ec2,
            given.cluster,
            here["instance-id"],
            here["placement/availability-zone"],
            given.volumes,
            given.gib,
        ),
        _until(FREE_DEADLINE_S, f"no volume of {given.cluster} became free"),
    )
    wait = _until(DEVICE_DEADLINE_S, f"the kernel did not show {volume}")
    while (device := device_of(volume)) is None:
        wait()
    mount(device, given.mount, given.owner, _run)
    print(f"{volume} is mounted at {given.mount}")


if __name__ == "__main__":
    main()
