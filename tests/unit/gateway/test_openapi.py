"""The description of HTTP is a valid one, and whatever is sent by it gets an answer that says why."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from tests.unit.gateway.conftest import Http, serving

NOT_DONE = (501, 503, 504)
"""Statuses of servers that are no fault: what there is not, what waits, what takes too long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A gateway of its own: whatever is sent here may also delete."""
    with serving(tmp_path_factory.mktemp("fuzzed")) as http:
        yield http


@pytest.fixture(scope="module")
def operations(server: Http) -> list[tuple[str, str, dict[str, Any]]]:
    paths = server.ok("GET", "/openapi.json")["paths"]
    return [(method, path, one) for path, methods in paths.items() for method, one in methods.items()]


def test_it_is_valid_and_names_every_operation_once(server: Http, operations: list[Any]) -> None:
    validate(server.ok("GET", "/openapi.json"))
    names = [one["operationId"] for _, _, one in operations]
    assert len(names) == len(set(names)) > 150
    assert [one["operationId"] for _, _, one in operations if not one.get("summary")] == []


def test_it_has_what_programs_call_and_no_pages(server: Http) -> None:
    description = server.ok("GET", "/openapi.json")
    assert description["servers"] == [{"url": server.url}]
    paths = description["paths"]
    topic = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
    assert "put" in paths[f"{topic}/partitions"]
    assert paths[f"{topic}/stats"]["get"]["parameters"][0]["schema"]["enum"] == [
        "persistent",
        "non-persistent",
    ]
    assert not [path for path in paths if path.startswith(("/ui", "/ws")) or path == "/"]


_TEXTS = st.one_of(
    st.sampled_from(
        ["public", "default", "t", "s", "earliest", "0", "-1", "9" * 30, "..", "%2e%2e", "a/b", "a b"]
    ),
    st.text(max_size=20),
    st.text(min_size=300, max_size=400),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=12), each, max_size=4),
    max_leaves=8,
)
_NAMES = ("ledgerId", "entryId", "partitionIndex", "messages", "payload", "adminRoles", "type", "schema")
_FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(_NAMES, _JSON))
_BODIES = st.one_of(
    st.none(),
    st.binary(max_size=50),
    _JSON.map(lambda value: json.dumps(value).encode()),
    _FIELDS.map(lambda value: json.dumps(value).encode()),
)
_QUERIES = st.dictionaries(
    st.sampled_from(
        ["force", "applied", "mode", "authoritative", "limit", "backlogQuotaType", "perPartition"]
    ),
    _TEXTS,
    max_size=2,
)
_TYPES = st.sampled_from(["application/json", "text/plain", "application/json; charset=nonsense", ""])


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_answered_with_a_reason(
    data: st.DataObject, server: Http, operations: list[tuple[str, str, dict[str, Any]]]
) -> None:
    method, path, operation = data.draw(st.sampled_from(operations))
    for parameter in operation["parameters"]:
        schema = parameter["schema"]
        value = data.draw(st.sampled_from(schema["enum"]) if "enum" in schema else _TEXTS)
        path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""), 1)
    query = urlencode(data.draw(_QUERIES))
    body = data.draw(_BODIES) if "requestBody" in operation else None
    kind = data.draw(_TYPES)
    answer = server(method.upper(), f"{path}?{query}", body, **{"Content-Type": kind})
    assert answer.status < 500 or answer.status in NOT_DONE, (method, path, query, body, answer.body)
    if answer.status >= 400:
        assert answer.json["reason"], (method, path, answer.body)
    assert server("GET", "/admin/v2/clusters").status == 200


_HERE = b"HTTP/1.1\r\nHost: localhost\r\n"
_GARBAGE = {
    "no request": b"nonsense\r\n\r\n",
    "no version": b"GET / HTTP/9.9\r\n\r\n",
    "a long header": b"GET /admin/v2/tenants " + _HERE + b"X: " + b"x" * (1 << 20),
    "a long path": b"GET /" + b"x" * (1 << 20) + b" " + _HERE + b"\r\n",
    "a negative length": b"POST /topics/persistent/a/b/t " + _HERE + b"Content-Length: -1\r\n\r\n",
    "no chunk": b"POST /admin/v2/tenants/t " + _HERE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "half an upgrade": b"GET /ws/v2/reader/persistent/a/b/t " + _HERE + b"Upgrade: websocket\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "nothing": b"",
}


@pytest.mark.parametrize("what", _GARBAGE)
def test_garbage_is_refused_and_the_next_caller_is_served(
    server: Http, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = http.client.HTTPConnection(server.address, timeout=20)
    connection.connect()
    try:
        connection.sock.sendall(_GARBAGE[what])
        connection.sock.shutdown(1)
        answer = b"".join(iter(lambda: connection.sock.recv(1 << 16), b""))
    except OSError:  # refused before all of it was sent
        answer = b""
    finally:
        connection.close()
    assert not answer or b" 4" in answer[:14], answer[:80]
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Content-Type: application/json" in head
        assert json.loads(body)["reason"]
    assert server("GET", "/admin/v2/clusters").status == 200
    # Else anybody who reaches the address could fill the disk.
    assert not caplog.records
