"""The table of settings in docs/settings.md: python -m tests.docs.settings_table prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pulsar_ray
from pulsar_ray.config import describe_settings

# These name settings without heeding them.
_DECLARING = ("config.py", "policies.py", "effective_policies.py")
# Read through a method of Settings.
_READ_BY = {
    "disk_low_water_mark_bytes": "low_water_mark_bytes",
    "max_active_actors": "active_actor_limit",
    "subscription_types_enabled": "subscription_types",
    "super_user_roles": "superusers",
    "tcp_port_range": "tcp_ports",
}


def is_used(name: str) -> bool:
    """Whether anything but the definition of the settings reads this one."""
    read = re.compile(rf"\.{_READ_BY.get(name, name)}\b|\"{name}\"")
    package = Path(pulsar_ray.__file__).parent
    sources = (path for path in package.rglob("*.py") if path.name not in _DECLARING)
    return any(read.search(path.read_text(encoding="utf-8")) for path in sources)


def settings_rows() -> list[str]:
    """A line for each setting that changes something."""
    return [
        f"| `{name}` | `{default}` | {meaning} |"
        for name, default, meaning in describe_settings()
        if is_used(name)
    ]


def reserved_names() -> list[str]:
    """The settings that nothing reads yet."""
    return [f"`{name}`" for name, _, _ in describe_settings() if not is_used(name)]


if __name__ == "__main__":
    print("\n".join(["| setting | default | meaning |", "|---|---|---|", *settings_rows()]))
    print()
    print(", ".join(reserved_names()))
