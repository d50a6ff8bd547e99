"""Look at every node's data directory before a broker is brought up."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from pulsar_ray.broker.catalog.catalog_file import read_catalog_identity
from pulsar_ray.broker.catalog.founding import NodeReport
from pulsar_ray.errors import BrokerPersistenceError, CorruptData, PulsarException
from pulsar_ray.journal.store_files import noted_url
from pulsar_ray.launch.every_node import ask_other_nodes
from pulsar_ray.managed_ledger.store.store_directory import check_foreign
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    STORE_FILE,
    has_partitions,
    read_identity,
)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_report(node_id: str, data_dir: str) -> NodeReport:
    """Report this machine's data directory; changes nothing, and raises nothing."""
    path = Path(data_dir)
    report: dict[str, Any] = {"node_id": node_id, "host": socket.gethostname(), "path": data_dir}
    try:
        if path.is_dir():
            found = path.stat()
            report["directory"] = f"{_BOOT_ID.read_text().strip()}:{found.st_dev}:{found.st_ino}"
            report["store"] = read_identity(path)
            report["remote_url"] = noted_url(path)
            report["has_partitions"] = has_partitions(path)
            report["catalog"] = read_catalog_identity(path / CATALOG_FILE)
            if report["store"] is None and (report["has_partitions"] or report["catalog"] is not None):
                # Not something else: it must not be passed over.
                reason = "it is missing beside topics: put it back"
                raise CorruptData(str(path / STORE_FILE), 0, reason)
            check_foreign(path)
    except PulsarException as error:
        report["problem"] = error
    except OSError as error:
        report["problem"] = BrokerPersistenceError(f"{path} cannot be used as data directory: {error}")
    return NodeReport(**report)


def node_reports(here: str, data_dir: str) -> tuple[list[NodeReport], list[str]]:
    """Every node's report, and the hosts that did not answer in time.

    This node's is made by this process, that of the others by short tasks.
    """
    others, silent = ask_other_nodes(here, node_report, data_dir)
    return [node_report(here, os.path.abspath(data_dir)), *others], silent
