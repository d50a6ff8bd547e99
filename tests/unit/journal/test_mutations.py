"""Each rule of the journal is needed: some history breaks a promise without it."""

from __future__ import annotations

import pytest

from tests.unit.journal.mutations import MUTATIONS, caught

QUICK = (
    "a seal is create-only",
    "'exists already' is told by the nonce",
    "receipts go by the prefix",
    "that files are gone is shipped first",
    "an owner is decided first",
    "asynchronous receipts are bounded",
)


@pytest.mark.parametrize("rule", QUICK)
def test_a_rule_that_is_left_out_is_caught_soon(rule: str) -> None:
    _, found = caught(rule, range(40))
    assert found


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", sorted(MUTATIONS.keys() - set(QUICK)))
def test_a_rule_that_is_left_out_is_caught(rule: str) -> None:
    _, found = caught(rule, range(20_000))
    assert found
