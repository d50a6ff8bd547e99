from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pulsar_ray.broker.catalog.catalog import FOUNDED_NUMBERS, REBUILT_NUMBERS, Catalog, PartitionRow
from pulsar_ray.broker.catalog.catalog_file import read_catalog_identity
from pulsar_ray.broker.catalog.founding import new_range
from pulsar_ray.errors import (
    BrokerPersistenceError,
    CatalogMissing,
    CorruptData,
    NotAllowedError,
    TopicNotFound,
    UnsupportedFormatVersion,
)
from pulsar_ray.model.topic_name import TopicName, change_log, heartbeat


def new_catalog(path: Path) -> Catalog:
    catalog, left_out = Catalog.make(path, "cluster", "first")
    assert left_out == []
    return catalog


@contextmanager
def full_disk(catalog: Catalog) -> Iterator[None]:
    """No page can be added to the file while this lasts."""
    (usual,) = catalog._db.execute("PRAGMA max_page_count")[0]
    catalog._db.execute("PRAGMA max_page_count=1")
    try:
        yield
    finally:
        catalog._db.execute(f"PRAGMA max_page_count={usual}")


def topic(number: int) -> TopicName:
    return TopicName.parse(f"{'t' * 200}-{number}")


def create_all(catalog: Catalog, tried: list[TopicName]) -> None:
    for number in range(1000):
        tried.append(topic(number))
        catalog.create(tried[-1], 8, ["store"])


def test_a_topic_that_a_full_disk_refused_is_created_once_there_is_room(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "meta.sqlite")
    created: list[TopicName] = []
    with (
        full_disk(catalog),
        pytest.raises(BrokerPersistenceError, match=r"meta.sqlite cannot be used \(database or disk is full"),
    ):
        create_all(catalog, created)
    assert catalog.partitions(created[-1].full) == []
    assert len(catalog.create(created[-1], 8, ["store"])) == 8
    catalog.close()


def test_a_deletion_that_a_full_disk_refused_leaves_the_topic_and_the_catalog_usable(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    catalog = new_catalog(path)
    catalog.create(topic(1), 2, ["store"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name("meta.sqlite-wal")
    # As a full disk does: the log beside the file grows no more.
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        with pytest.raises(BrokerPersistenceError, match=r"meta.sqlite cannot be used"):
            catalog.delete(topic(1).full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(catalog.partitions(topic(1).full)) == 2
    catalog.delete(topic(1).full)
    assert catalog.partition_count(topic(1).full) is None
    catalog.close()


def test_a_catalog_is_made_whole_and_never_by_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    with pytest.raises(CatalogMissing):
        Catalog(path)
    assert read_catalog_identity(path) is None
    path.with_name("meta.sqlite.new").write_bytes(b"begun by a process that died")
    new_catalog(path).close()
    assert [found.name for found in tmp_path.iterdir()] == ["meta.sqlite"]
    assert not path.stat().st_mode & 0o077
    assert read_catalog_identity(path) == Catalog(path).identity == ("cluster", ("first",))


@pytest.mark.parametrize("left", [0, 1])
def test_a_file_that_was_emptied_is_no_catalog_without_topics(tmp_path: Path, left: int) -> None:
    path = tmp_path / "meta.sqlite"
    new_catalog(path).close()
    path.write_bytes(path.read_bytes()[:left])
    for use in (Catalog, read_catalog_identity):
        with pytest.raises(CorruptData, match="rebuild-catalog"):
            use(path)
    assert path.stat().st_size == left


def test_a_catalog_that_cannot_be_opened_just_now_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    new_catalog(path).close()
    path.with_name("meta.sqlite-wal").mkdir()
    for use in (Catalog, read_catalog_identity):
        with pytest.raises(BrokerPersistenceError, match=r"meta.sqlite cannot be .* disk"):
            use(path)
    path.with_name("meta.sqlite-wal").rmdir()
    Catalog(path).close()


def test_a_catalog_of_version_0_1_is_adopted_once(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    catalog = new_catalog(path)
    catalog.create(topic(1), 3, ["store"])
    # As version 0.1 left it.
    for table in ("cluster", "generation", "store"):
        catalog._db.execute(f"DROP TABLE {table}")
    catalog._db.execute("PRAGMA user_version=0")
    catalog.close()
    assert read_catalog_identity(path) == ("", ())
    catalog = Catalog(path)
    catalog.adopt("cluster", "adopted")
    assert catalog.identity == ("cluster", ("adopted",))
    assert [row.number for row in catalog.create(topic(2), 0, ["store"])] == [4]
    catalog._db.execute("PRAGMA user_version=4")
    catalog.close()
    with pytest.raises(UnsupportedFormatVersion, match="format version 4"):
        Catalog(path)


def found(name: str, number: int, store: str, index: int = -1) -> PartitionRow:
    full = TopicName.parse(name)
    own = full.partition(index).full if index >= 0 else full.full
    return PartitionRow(own, number, full.full, index, store, has_ledger=True)


def test_what_is_restored_is_never_mixed(tmp_path: Path) -> None:
    again = found("t", 9, "b")
    other_kind = found("t", 10, "b", 0)
    same_number = found("u", 1, "b")
    kept = found("t", 1, "a")
    catalog, left_out = Catalog.make(
        tmp_path / "meta.sqlite", "c", "g", restored=[kept, again, other_kind, same_number, kept]
    )
    assert left_out == [again, other_kind, same_number]
    assert catalog.topics_of("public/default") == [(kept.topic, 0)]
    assert catalog.partitions(kept.topic) == [kept]
    assert catalog.is_taken(again.name, again.topic)
    assert catalog.is_taken(other_kind.name, other_kind.topic)
    assert not catalog.is_taken(same_number.name, same_number.topic)


def test_a_partition_that_nobody_found_keeps_its_place(tmp_path: Path) -> None:
    """So keys go where they went, and it is served again when it is found."""
    parts = [found("t", number, "ab"[number % 2], number) for number in range(4)]
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "c", "g", restored=parts[1::2])
    rows = catalog.partitions(parts[0].topic)
    assert [row.partition_index for row in rows] == [0, 1, 2, 3]
    assert [row.store_id for row in rows] == ["", "b", "", "b"]
    assert [row.store_id for row in rows if row.number < 0] == ["", ""]
    assert catalog.partitions_per_store() == {"b": 2}
    assert not catalog.is_taken(parts[0].name, parts[0].topic)
    assert catalog.restore(parts) == []
    assert catalog.partitions(parts[0].topic) == parts


def test_no_number_is_granted_twice_whatever_is_lost(tmp_path: Path) -> None:
    """The catalog is lost, and made anew without a store that comes back later."""
    random = Random(7)
    granted: set[int] = set()
    hidden: list[PartitionRow] = []
    seen: list[PartitionRow] = []
    for life in range(20):
        path = tmp_path / f"{life}.sqlite"
        first = new_range((row.number for row in seen), random) if life else 0
        catalog, _ = Catalog.make(path, "c", f"g{life}", first, restored=seen)
        for number in range(5):
            for row in catalog.create(topic(100 * life + number), 3, ["here", "hidden"]):
                assert row.number not in granted
                granted.add(row.number)
                (seen if row.store_id == "here" else hidden).append(replace(row, has_ledger=True))
        catalog.close()
        if life % 5 == 4:
            seen, hidden = [*seen, *hidden], []


def test_a_restoration_that_a_full_disk_refused_has_restored_nothing(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "meta.sqlite")
    rows = [found(topic(number).full, number, "store") for number in range(1, 200)]
    with full_disk(catalog), pytest.raises(BrokerPersistenceError):
        catalog.restore(rows)
    assert catalog.topics_of("public/default") == []
    assert catalog.restore(rows) == []
    assert len(catalog.topics_of("public/default")) == len(rows)


def test_the_log_that_a_lost_catalog_left_does_not_get_into_a_new_one(tmp_path: Path) -> None:
    path, log = tmp_path / "meta.sqlite", tmp_path / "meta.sqlite-wal"
    lost = new_catalog(path)
    for number in range(20):
        lost.create(topic(number), 3, ["store"])
    left = log.read_bytes()  # as a kill leaves it
    lost.close()
    path.unlink()
    log.write_bytes(left)
    first = new_range([], Random(1))
    made, _ = Catalog.make(path, "cluster", "later", first)
    assert (made.identity.generations, made.last_number) == (("later",), first)
    assert made.topics_of("public/default") == []
    made.close()


def test_a_catalog_that_has_granted_all_its_numbers_says_so(tmp_path: Path) -> None:
    first = FOUNDED_NUMBERS + REBUILT_NUMBERS
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "c", "g", first)
    catalog.skip_numbers(first + REBUILT_NUMBERS + 5)
    catalog.skip_numbers(5)
    assert catalog.last_number == first
    catalog.skip_numbers(first + REBUILT_NUMBERS)
    with pytest.raises(NotAllowedError, match="--rebuild-catalog"):
        catalog.create(topic(1), 0, ["store"])


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    path.write_bytes(b"no database" * 1000)
    for refused in (Catalog, read_catalog_identity):
        with pytest.raises(CorruptData, match=r"meta\.sqlite"):
            refused(path)


def test_a_catalog_without_policies_is_taken_over_with_all_its_namespaces(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    catalog = new_catalog(path)
    catalog.tenants.add_namespace("acme/orders")
    # As a build left it that knew no policies.
    for table in ("tenant", "policy", "policy_version", "last_version", "change_log", "last_change"):
        catalog._db.execute(f"DROP TABLE {table}")
    catalog._db.execute("PRAGMA user_version=2")
    catalog.close()
    catalog = Catalog(path)
    assert catalog.tenants.names() == ["acme", "public", "pulsar"]
    assert catalog.tenants.namespaces("acme") == ["acme/orders"]
    assert catalog._db.execute("PRAGMA user_version") == [(3,)], "an older build would delete what is kept"
    catalog.close()


def test_a_log_gets_those_partitions_again_that_were_never_used(tmp_path: Path) -> None:
    log = change_log("public/default")
    used = found(log.full, 7, "store", 2)
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "c", "g", restored=[used])
    lost = log.partition(0).full
    catalog.change_logs.mark_dirty(lost)
    catalog.complete(log, 4, ["store"])
    rows = catalog.partitions(log.full)
    assert [row.partition_index for row in rows] == [0, 1, 2, 3]
    assert [row.store_id for row in rows] == ["", "store", "store", "store"], "one may have had policies"
    assert rows[2] == used
    assert [row.has_ledger for row in rows[1::2]] == [False, False]
    assert catalog.change_logs.dirty() == [lost, used.name]


def test_a_topic_that_took_the_name_of_a_log_before_it_was_reserved_is_named(tmp_path: Path) -> None:
    log = change_log("public/default")
    catalog = new_catalog(tmp_path / "meta.sqlite")
    catalog.create(log, 0, ["store"])
    with pytest.raises(NotAllowedError, match="delete it first"):
        catalog.complete(log, 4, ["store"])


def test_partitions_of_a_store_that_is_forgotten_begin_anew_with_other_numbers(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.db")
    topic, alone = TopicName.parse("public/default/t"), TopicName.parse("public/default/alone")
    for store in ("a", "b", "c"):
        catalog.remember_store(store, f"host {store}", "/data")
    catalog.create(topic, 4, ["a", "b"])
    catalog.create(alone, 0, ["b"])
    catalog.create(heartbeat("b"), 0, ["b"])
    catalog.note_absence("b", 1)
    for row in catalog.partitions(topic.full):
        catalog.opened(row.name)
    before = {row.name: row for row in catalog.partitions(topic.full)}
    inherited = {topic.partition(1).full: {"s": {"of": "t"}}}
    last = catalog.last_number

    was = catalog.forget_store("b", ["a", "c"], inherited)

    rows = {row.name: row for row in (*catalog.partitions(topic.full), *catalog.partitions(alone.full))}
    assert {row.name for row in was} == {
        topic.partition(1).full,
        topic.partition(3).full,
        alone.full,
        heartbeat("b").full,
    }
    anew = [row for row in rows.values() if row.number > last]
    assert {row.name for row in anew} == {row.name for row in was} - {heartbeat("b").full}
    assert {row.store_id for row in anew} == {"a", "c"}
    assert not any(row.has_ledger for row in anew)
    for index in (0, 2):
        assert rows[topic.partition(index).full] == before[topic.partition(index).full]
    assert catalog.partition_count(heartbeat("b").full) is None
    assert "b" not in catalog.stores()
    assert catalog.absences() == {}
    assert {name: catalog.inheritance_of(name) for name in catalog.heirs()} == inherited
    catalog.settle_inheritance(topic.partition(1).full)
    assert catalog.heirs() == []


def test_partitions_that_were_never_opened_move_as_they_are(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.db")
    topic = TopicName.parse("public/default/t")
    catalog.create(topic, 4, ["b"])
    catalog.create(heartbeat("b"), 0, ["b"])
    catalog.opened(topic.partition(2).full)
    moved = catalog.move_unopened("b", ["a", "c"])
    assert [row.store_id for row in moved] == ["b"] * 3
    rows = catalog.partitions(topic.full)
    assert [(row.store_id, row.has_ledger) for row in rows] == [
        ("a", False),
        ("c", False),
        ("b", True),
        ("a", False),
    ]
    assert set(catalog.names_in("b", -1)) == {topic.partition(2).full, heartbeat("b").full}


def test_a_topic_that_is_deleted_inherits_nothing(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.db")
    topic = TopicName.parse("public/default/t")
    catalog.create(topic, 1, ["b"])
    catalog.forget_store("b", ["a"], {topic.partition(0).full: {"s": {}}})
    catalog.delete(topic.full)
    assert catalog.heirs() == []


def test_a_store_is_forgotten_whole_or_not_at_all(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.db")
    topic = TopicName.parse("public/default/t")
    catalog.create(topic, 40, ["b"])
    before = catalog.partitions(topic.full)
    catalog._db.execute("UPDATE last_number SET value = ?", (FOUNDED_NUMBERS - 20,))
    with pytest.raises(NotAllowedError, match="granted all its numbers"):
        catalog.forget_store("b", ["a"], {topic.partition(0).full: {"s": {}}})
    assert catalog.partitions(topic.full) == before
    assert catalog.heirs() == []


@pytest.mark.parametrize("seed", range(5))
def test_partitions_are_counted_by_store_whatever_happens_to_them(tmp_path: Path, seed: int) -> None:
    random, catalog = Random(seed), new_catalog(tmp_path / "meta.sqlite")
    stores = ["a", "b", "c"]

    def some_topic() -> TopicName:
        return TopicName.parse(f"t{random.randrange(8)}")

    def create() -> None:
        with suppress(NotAllowedError):
            catalog.create(some_topic(), random.randrange(4), random.sample(stores, 2))

    def fail() -> None:
        with full_disk(catalog), suppress(BrokerPersistenceError, NotAllowedError):
            catalog.create(TopicName.parse(f"t{random.randrange(8)}"), 500, stores)

    def move() -> None:
        rows = catalog.all_partitions(some_topic().full)
        catalog.move_partitions({row.number: random.choice(stores) for row in rows})

    def restore() -> None:
        rows = catalog.all_partitions(some_topic().full)
        catalog.restore([replace(row, store_id=random.choice(stores)) for row in rows])

    def grow() -> None:
        name = some_topic()
        if catalog.partition_count(name.full):
            catalog.prepare_partitions(name, 6, stores)

    def delete() -> None:
        with suppress(TopicNotFound):
            catalog.delete(some_topic().full)

    for _ in range(60):
        random.choice([create, create, fail, move, restore, grow, delete])()
        counted = catalog._db.execute("SELECT store_id, COUNT(*) FROM partition GROUP BY store_id")
        assert catalog.partitions_per_store() == {store: count for store, count in counted if store}
    counts = catalog.partitions_per_store()
    catalog.close()
    assert Catalog(tmp_path / "meta.sqlite").partitions_per_store() == counts


def test_topics_of_a_namespace_are_not_those_of_one_that_begins_alike(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "meta.sqlite")
    for namespace in ("n", "n-1", "n0", "N"):
        catalog.tenants.add_namespace(f"public/{namespace}")
        catalog.create(TopicName.parse(f"public/{namespace}/t"), 0, ["a"])
    catalog.create(TopicName.parse("non-persistent://public/n/\u00e9"), 2, ["a"])
    assert catalog.topics_of("public/n") == [
        ("non-persistent://public/n/\u00e9", 2),
        ("persistent://public/n/t", 0),
    ]
    assert catalog.topics_of("public/other") == []
