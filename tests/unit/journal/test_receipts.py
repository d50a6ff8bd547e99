from __future__ import annotations

from pulsar_ray.journal.receipts import Receipts


def test_synchronous_receipts_wait_for_the_prefix() -> None:
    receipts = Receipts(30)
    receipts.ask(1, "a", "sync")
    receipts.ask(2, "b", "sync")
    assert receipts.waits_for_sync
    assert receipts.release(0, 0) == []
    assert receipts.release(0, 1) == ["a"]
    assert receipts.release(0, 2) == ["b"]
    assert not receipts.waits_for_sync


def test_asynchronous_receipts_wait_while_the_oldest_unshipped_one_is_too_old() -> None:
    receipts = Receipts(30)
    receipts.ask(1, "a", "async")
    assert receipts.release(0, 0) == ["a"]
    receipts.ask(2, "b", "async")
    assert receipts.release(31, 0) == []
    assert receipts.is_behind(31)
    assert receipts.release(32, 1) == ["b"]


def test_receipts_that_waited_for_the_shipping_itself_may_wait_for_the_bound_alone() -> None:
    receipts = Receipts(30)
    receipts.ask(1, "a", "async")
    receipts.ask(2, "b", "sync")
    receipts.ask(3, "c", "async")
    assert receipts.release(0, 0) == ["a", "c"]
    receipts.relax()
    assert receipts.release(0, 0) == ["b"]
    assert not receipts.waits_for_sync
