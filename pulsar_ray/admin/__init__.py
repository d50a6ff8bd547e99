"""Administration of a running broker, shaped like pulsar-admin."""

from pulsar_ray.admin.admin import Admin
from pulsar_ray.admin.topics import Topics

__all__ = ["Admin", "Topics"]
