"""One thing that is wrong, where it is, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ERROR = "error"
"""Something does not work now."""
WARNING = "warning"
"""Everything works, and will not for ever."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact with its consequence.

    `kind` says what `subject` names; `host` is "" where there is none.
    """

    severity: str
    kind: str
    """broker, node, store, topic (a log of policies), partition, subscription or, for a doctor, machine."""
    subject: str
    host: str
    reason: str
    remedy: str = ""

    def text(self) -> str:
        """One line to read."""
        about = f"{self.kind} {self.subject}" if self.subject else self.kind
        where = f" on {self.host}" if self.host else ""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.severity}: {about}{where}: {self.reason}{remedy}"

    def described(self) -> dict[str, str]:
        """The fields, for JSON."""
        return dataclasses.asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort errors before warnings, and alike by what they are about."""
    order = {ERROR: 0, WARNING: 1}
    return sorted(
        findings, key=lambda each: (order.get(each.severity, 2), each.kind, each.host, each.subject)
    )


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The broker's health at one moment, the worst findings first."""

    findings: Sequence[Finding]
    stores: int
    """Stores that answered."""
    running: int
    """Partitions and dispatchers that run; the others sleep, and nothing wakes them."""

    @property
    def is_healthy(self) -> bool:
        """Whether everything works; there may be warnings."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """The findings by which something does not work."""
        return [each for each in self.findings if each.severity == ERROR]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that are no errors."""
        return [each for each in self.findings if each.severity != ERROR]

    def described(self) -> dict[str, Any]:
        """Describe the report with plain values, for JSON and over a call."""
        return {
            "healthy": self.is_healthy,
            "stores": self.stores,
            "running": self.running,
            "findings": [each.described() for each in self.findings],
        }

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> HealthReport:
        """The report that `described` came from."""
        findings = [Finding(**each) for each in described["findings"]]
        return cls(findings, described["stores"], described["running"])
