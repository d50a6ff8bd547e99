"""The broker that a command talks to.

Clients are imported when they are made: `--help` must not pay for Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pulsar_ray.cli.watching.progress import progress

if TYPE_CHECKING:
    from pulsar_ray.admin.admin import Admin
    from pulsar_ray.admin.topics import Topics
    from pulsar_ray.client.client import Client
    from pulsar_ray.launch.rays.ray_session import RaySession

T = TypeVar("T")

WAITING = "waiting for the broker"


@dataclass(frozen=True)
class Target:
    """The global options. Tests put a stand-in for it into the context."""

    service_url: str = "auto"
    data_dir: str | None = None
    transport: str = "auto"

    def client(self) -> Client:
        """A client of the broker; it connects at its first use."""
        from pulsar_ray.client.client import Client  # noqa: PLC0415

        return Client(self.service_url, data_dir=self.data_dir, transport=self.transport)

    def admin(self) -> Admin:
        """An administrator of the broker; it connects at its first use."""
        from pulsar_ray.admin.admin import Admin  # noqa: PLC0415

        return Admin(self.service_url, data_dir=self.data_dir)

    def session(self) -> RaySession:
        """Join the Ray of the broker, which starts nothing. Raises ConnectError if there is none."""
        from pulsar_ray.config import Settings  # noqa: PLC0415
        from pulsar_ray.launch.rays.ray_session import join_session  # noqa: PLC0415

        settings = Settings.load(data_dir=self.data_dir)
        prefers_embedded = self.data_dir is not None
        return join_session(self.service_url, Path(settings.data_dir), prefers_embedded=prefers_embedded)

    @contextmanager
    def asked(self) -> Iterator[Admin]:
        """An administrator for calls without output, which show that they wait.

        The broker may have to be started, and its answer may take its time.
        """
        with self.admin() as admin, progress(WAITING):
            yield admin

    def ask(self, call: Callable[[Topics], T]) -> T:
        """Call `Admin.topics` of the broker, and return the answer."""
        with self.asked() as admin:
            return call(admin.topics)


pass_target = click.make_pass_decorator(Target)
