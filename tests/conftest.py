"""What every test runs under."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no failure: no test asserts a time, hypothesis' own deadline included.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
