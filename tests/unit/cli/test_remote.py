"""`pulsar-ray remote verify` and `bill` need an address and no broker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget
from tests.unit.maintenance.test_remote_verify import homes, names, shipped, url

__all__ = ["homes", "shipped", "url"]


def test_verify_says_what_is_whole_and_fails_when_something_is_not(run: Run, shipped: Path, url: str) -> None:
    whole = run(FakeTarget(), "remote", "verify", url, "--deep")
    assert (whole.exit_code, "all can be restored (stores: 1" in whole.stdout) == (0, True)
    (piece,) = names(shipped, "segments/")
    (shipped / piece).unlink()
    faulty = run(FakeTarget(), "remote", "verify", url)
    assert faulty.exit_code == 1
    assert f"{piece}: is not there: bring it back" in faulty.stdout
    told = json.loads(run(FakeTarget(), "remote", "verify", url, "--json").stdout)
    assert (told["clean"], told["faults"][0]["object"]) == (False, piece)


def test_without_an_address_the_one_is_taken_that_the_store_ships_to(run: Run, shipped: Path) -> None:
    target = FakeTarget()
    object.__setattr__(target, "data_dir", str(shipped.parent / "a"))
    assert run(target, "remote", "verify").exit_code == 0
    object.__setattr__(target, "data_dir", str(shipped.parent / "nothing"))
    refused = run(target, "remote", "verify")
    assert (refused.exit_code, "give the URL" in refused.stderr) == (2, True)


def test_the_bill_has_kinds_and_prices(run: Run, shipped: Path, url: str) -> None:
    said = run(FakeTarget(), "remote", "bill", url, "--put-price", "1")
    assert (said.exit_code, "segments" in said.stdout) == (0, True)
    assert "at $1 per 1,000 PUTs" in said.stdout
    told = json.loads(run(FakeTarget(), "remote", "bill", url, "--json").stdout)
    assert told["kinds"]["segments"]["objects"] == 1
    assert told["puts_per_day"] > 0
