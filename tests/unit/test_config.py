from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsar_ray.config import (
    GIB,
    MIB,
    Settings,
    describe_settings,
)
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.format.block import MAX_ROWS
from pulsar_ray.setting_fields import default_of, pulsar_key

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
NAMES = list(FIELDS)


def load(
    config_file: str | Path | None = None, env: dict[str, str] | None = None, **overrides: Any
) -> Settings:
    return Settings.load(config_file, env or {}, **overrides)


def test_defaults_are_pulsars() -> None:
    settings = load()
    assert settings.max_message_size == 5242880
    assert settings.netty_max_frame_size_bytes == 5253120
    assert settings.subscription_key_shared_consistent_hashing_replica_points == 100
    assert settings.allow_auto_topic_creation_type == "non-partitioned"
    assert settings.max_num_delayed_delivery_tracker_memory_entries == 100_000
    assert not settings.broker_deduplication_enabled
    assert not settings.acknowledgment_at_batch_index_level_enabled


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("max_message_size", "maxMessageSize"),
        ("delayed_delivery_tick_time_millis", "delayedDeliveryTickTimeMillis"),
        ("acknowledgment_at_batch_index_level_enabled", "acknowledgmentAtBatchIndexLevelEnabled"),
        ("managed_ledger_max_entries_per_ledger", "managedLedgerMaxEntriesPerLedger"),
        ("managed_ledger_max_size_per_ledger_mbytes", "managedLedgerMaxSizePerLedgerMbytes"),
        ("default_retention_size_in_mb", "defaultRetentionSizeInMB"),
        ("default_retention_time_in_minutes", "defaultRetentionTimeInMinutes"),
    ],
)
def test_names_convert_to_pulsars_keys(name: str, key: str) -> None:
    assert pulsar_key(FIELDS[name]) == key


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_found_in_a_file_by_pulsars_key(name: str, tmp_path: Path) -> None:
    key = pulsar_key(FIELDS[name])
    assert "_" not in key
    file = tmp_path / "broker.yaml"
    file.write_text(yaml.safe_dump({key: default_of(FIELDS[name])}))
    assert getattr(load(file), name) == getattr(load(), name)


@pytest.mark.parametrize("key", ["maxMesageSize", "max_mesage_size"])
def test_an_unknown_key_in_a_file_fails(key: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(f"{key}: 1\n")
    with pytest.raises(InvalidConfiguration, match="no setting"):
        load(file)


def test_every_setting_is_described() -> None:
    described = describe_settings()
    assert [name for name, _, _ in described] == NAMES
    assert all(doc for _, _, doc in described)


def test_keywords_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text("max_active_actors: 1\nsegment_size_bytes: 1048576\nsessionLeaseSeconds: 20\n")
    env = {"PULSAR_RAY_MAX_ACTIVE_ACTORS": "2", "PULSAR_RAY_SEGMENT_SIZE_BYTES": "2097152"}
    settings = load(file, env, max_active_actors=3, data_dir=None)
    assert settings.max_active_actors == 3
    assert settings.segment_size_bytes == 2 * MIB
    assert settings.session_lease_seconds == 20.0
    assert settings.reattach_grace_seconds == 5.0


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text("acknowledgmentAtBatchIndexLevelEnabled: true\n")
    settings = load(env={"PULSAR_RAY_CONFIG_FILE": str(file), "OTHER": "x"})
    assert settings.acknowledgment_at_batch_index_level_enabled


def test_deduplication_is_turned_on_by_its_setting_of_pulsar(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(
        "brokerDeduplicationEnabled: true\nbrokerDeduplicationProducerInactivityTimeoutMinutes: 5\n"
        "brokerDeduplicationMaxNumberOfProducers: 7\n"
    )
    settings = load(file)
    assert settings.broker_deduplication_enabled
    assert settings.broker_deduplication_producer_inactivity_timeout_minutes == 5
    assert settings.broker_deduplication_max_number_of_producers == 7


def test_a_block_holds_no_more_rows_than_the_format_allows() -> None:
    assert load(max_block_rows=MAX_ROWS).max_block_rows == MAX_ROWS
    with pytest.raises(InvalidConfiguration, match="max_block_rows"):
        load(max_block_rows=MAX_ROWS + 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), (" 1 ", True), ("on", True), ("no", False), ("0", False)],
)
def test_booleans_of_the_environment(text: str, value: bool) -> None:
    assert load(env={"PULSAR_RAY_SYSTEM_TOPIC_ENABLED": text}).system_topic_enabled is value


def test_the_data_directory_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    assert load().data_dir == "/home/someone/.pulsar-ray"
    assert load(data_dir="here").data_dir == str(tmp_path / "here")
    assert load(data_dir=tmp_path / "path").data_dir == str(tmp_path / "path")
    assert load(env={"PULSAR_RAY_DATA_DIR": "~/d"}).data_dir == "/home/someone/d"


def test_loading_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_RAY_MAX_ACTIVE_ACTORS", "7")
    assert Settings.load().max_active_actors == 7


@pytest.mark.parametrize("name", ["max_mesage_size", "maxMessageSize", "max_message_sizes"])
def test_an_unknown_keyword_names_the_nearest_setting(name: str) -> None:
    with pytest.raises(
        InvalidConfiguration, match=rf"'{name}' is no setting: did you mean max_message_size\?"
    ):
        Settings.load(None, {}, **{name: 1})


def test_an_unknown_name_like_no_setting_says_where_they_are() -> None:
    with pytest.raises(InvalidConfiguration, match="'zzz' is no setting: see"):
        load(zzz=1)


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_variable_for_uncompiled_modules_is_no_setting(value: str) -> None:
    assert load(env={"PULSAR_RAY_PURE": value}) == load(env={})


def test_an_unknown_variable_or_key_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"in the environment is no setting: .*PULSAR_RAY_DATA_DIR\?"
    ):
        load(env={"PULSAR_RAY_DATADIR": "/x"})
    file = tmp_path / "broker.yaml"
    file.write_text("maxMesageSize: 5\n")
    with pytest.raises(
        InvalidConfiguration, match=r"broker\.yaml is no setting: did you mean maxMessageSize\?"
    ):
        load(file)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("max_message_size", "5 MiB", "an integer from 1 to"),
        ("max_message_size", True, "an integer"),
        ("max_message_size", 5.0, "an integer"),
        ("max_message_size", 0, "from 1"),
        ("max_message_size", 2**40, "from 1 to"),
        ("system_topic_enabled", 1, "true or false"),
        ("allow_auto_topic_creation_type", "many", "one of non-partitioned, partitioned"),
        ("default_retention_size_in_mb", -2, "at least -1"),
        ("session_lease_seconds", float("nan"), "a number"),
        ("session_lease_seconds", float("inf"), "a number"),
        ("session_lease_seconds", "60", "a number"),
        ("data_dir", "", "not empty"),
        ("data_dir", "a\0b", "path of a directory"),
        ("data_dir", 5, "text"),
        ("tcp_port_range", "9000-8000", "1 to 65535"),
        ("tcp_port_range", "0-5", "1 to 65535"),
        ("tcp_port_range", "70000", "1 to 65535"),
        ("tcp_port_range", "http", "1 to 65535"),
        ("max_block_rows", 8193, "8192"),
    ],
)
def test_a_bad_value_names_setting_value_and_remedy(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        Settings.load(None, {}, **{name: value})
    assert name in str(raised.value)
    assert repr(value) in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize("name", ["max_producers_per_topic", "session_lease_seconds"])
@pytest.mark.parametrize("bits", [63, 1500, 20_000])
def test_a_number_that_no_arithmetic_bears_is_refused(name: str, bits: int) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name} is a number of .* bits: give .* below 2"):
        Settings.load(None, {}, **{name: 2**bits})


@pytest.mark.parametrize("text", ["x", "", "1.5", "2147483648x"])
def test_a_bad_variable_names_itself(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="PULSAR_RAY_MAX_BLOCK_ROWS") as raised:
        load(env={"PULSAR_RAY_MAX_BLOCK_ROWS": text})
    assert repr(text) in str(raised.value)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=f"set it to at least {6 * MIB + 10240}"):
        load(max_message_size=6 * MIB)
    assert load(max_message_size=6 * MIB, netty_max_frame_size_bytes=7 * MIB).max_message_size == 6 * MIB
    with pytest.raises(InvalidConfiguration, match="which is 240"):
        load(managed_ledger_min_ledger_rollover_time_minutes=241)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("- a\n", "holds a list"),
        ("a: [", "is not YAML"),
        ("max_message_size: 5\nmaxMessageSize: 6\n", "given twice"),
        ("max_message_size: '5'\n", "is '5', a str"),
        ("1: 2\n", "'1' in .* is no setting"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(content)
    with pytest.raises(InvalidConfiguration, match=reason) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"none\.yaml cannot be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InvalidConfiguration, match=r"binary\.yaml is not YAML"):
        load(tmp_path / "binary.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load(tmp_path / "empty.yaml") == load()


def test_replacing_values_checks_them() -> None:
    assert load().replace(max_active_actors=5).max_active_actors == 5
    with pytest.raises(InvalidConfiguration, match="did you mean max_active_actors"):
        load().replace(max_activ_actors=5)


def test_settings_survive_pickling() -> None:
    settings = load(data_dir="/data", max_active_actors=5)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_ports() -> None:
    assert load().tcp_ports() == (0, 0)
    assert load(tcp_port_range="7000").tcp_ports() == (7000, 7000)
    assert load(tcp_port_range="7000-7009").tcp_ports() == (7000, 7009)


def test_limits_that_follow_the_machine() -> None:
    assert load().low_water_mark_bytes(20 * GIB) == GIB
    assert load().low_water_mark_bytes(1000 * GIB) == 20 * GIB
    assert load(disk_low_water_mark_bytes=5).low_water_mark_bytes(1000 * GIB) == 5
    assert load().active_actor_limit(24 * GIB) == 307
    assert load().active_actor_limit(0) == 8
    assert load(max_active_actors=0).active_actor_limit(24 * GIB) > 10**9
