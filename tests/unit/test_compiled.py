"""Modules may be compiled: which ones, when their sources run instead, and what must not differ."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import traceback
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

import pulsar_ray
from pulsar_ray import compiled
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import MessageTooBig, Timeout
from tests.unit.client.producer.publishing_link import PublishingLink, opened

ROOT = Path(__file__).parents[2]
_toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
LISTED: list[str] = _toml.loads((ROOT / "pyproject.toml").read_text())["tool"]["pulsar_ray"]["compiled"][
    "modules"
]
LIBRARY = EXTENSION_SUFFIXES[0]
STAMP = f".compiled.{sys.implementation.cache_tag}.json"
NAMES_THE_FILE = "import pulsar_ray.module; print(pulsar_ray.module.__file__)"


def test_every_listed_module_exists() -> None:
    missing = [name for name in LISTED if not Path(ROOT, *name.split(".")).with_suffix(".py").is_file()]
    assert not missing, f"pyproject.toml lists modules to compile that are not there: {missing}"
    assert len(set(LISTED)) == len(LISTED)


def test_all_of_them_are_compiled_or_none_is() -> None:
    assert compiled.compiled_modules() in ([], sorted(LISTED)), "run `make setup`"


def test_what_runs_is_what_is_said() -> None:
    said = set(compiled.compiled_modules())
    for name in LISTED:
        path = importlib.import_module(name).__file__ or ""
        assert path.endswith(LIBRARY if name in said else ".py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of this name whose one module has a library that cannot be loaded."""
    package = tmp_path / "pulsar_ray"
    package.mkdir()
    for name in ("__init__.py", "compiled.py"):
        shutil.copy(ROOT / "pulsar_ray" / name, package)
    (package / "module.py").write_text("")
    (package / f"module{LIBRARY}").write_bytes(b"no library")
    return package


def run(package: Path, code: str, pure: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != compiled.PURE}
    environment["PYTHONPATH"] = str(package.parent)
    if pure is not None:
        environment[compiled.PURE] = pure
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def stamp(package: Path, checksum: str) -> None:
    (package / STAMP).write_text(json.dumps({"sources": {"module.py": checksum}}))


def test_a_library_is_taken_for_its_source(package: Path) -> None:
    assert "ImportError" in run(package, NAMES_THE_FILE).stderr
    assert "ImportError" in run(package, NAMES_THE_FILE, pure="0").stderr
    stamp(package, hashlib.sha256(b"").hexdigest())
    assert "ImportError" in run(package, NAMES_THE_FILE).stderr


def test_the_source_runs_on_request(package: Path) -> None:
    assert run(package, NAMES_THE_FILE, pure="1").stdout.strip() == str(package / "module.py")
    describe = "from pulsar_ray.compiled import describe; print(describe())"
    assert run(package, describe, pure="1").stdout.strip() == "interpreted (PULSAR_RAY_PURE is set)"
    assert run(package, describe).stdout.strip() == "1 modules compiled (module)"


def test_a_source_that_has_changed_runs_in_place_of_its_library(package: Path) -> None:
    stamp(package, hashlib.sha256(b"# as it was\n").hexdigest())
    assert run(package, NAMES_THE_FILE).stdout.strip() == str(package / "module.py")
    said = run(package, "from pulsar_ray.compiled import describe; print(describe())").stdout
    assert said.startswith("interpreted (module.py changed since modules were compiled")


def test_a_module_is_looked_for_in_its_package_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    find = compiled.SourceFinder.find_spec
    assert find("elsewhere", [str(tmp_path)]) is None
    assert find("pulsar_ray.nowhere", [str(tmp_path)]) is None
    found = find("pulsar_ray.elsewhere", [str(tmp_path)])
    assert found is not None
    assert isinstance(found.loader, SourceFileLoader)


# --- what must not differ ------------------------------------------------------------------------------


def queue(**options: Any) -> SendQueue:
    link = PublishingLink()
    queue = SendQueue(link, 7, 0, ProducerOptions(topic="t", **options))
    queue.begin(opened())
    link.carrier = "first"
    queue.resume(opened(), link.carrier)
    return queue


def test_tracebacks_name_the_lines_of_the_sources() -> None:
    with pytest.raises(MessageTooBig) as raised:
        queue().enqueue(bytes(6 * 1024 * 1024), None)
    frames = {Path(frame.filename).name: frame for frame in traceback.extract_tb(raised.value.__traceback__)}
    frame = frames["batch_builder.py"]
    assert frame.name == "_checked"
    assert (frame.line or "").startswith("check_block_size(")


@pytest.mark.parametrize("name", LISTED)
def test_signatures_are_those_of_the_sources(name: str) -> None:
    """Names, order, kinds and defaults: those that an editor or `help` shows."""
    from_source = sources_of(name)
    module = importlib.import_module(name)
    for path, parameters in from_source.items():
        function: Any = module
        for part in path.split("."):
            function = inspect.getattr_static(function, part)
        function = getattr(function, "__func__", function)
        if not callable(function) or path == "Position.next":  # of a tuple, whose methods show none
            continue
        shown = [each.name for each in inspect.signature(function).parameters.values()]
        assert shown == parameters, path


def sources_of(name: str) -> dict[str, list[str]]:
    """Parameters of the functions and methods whose names are public, as the source has them."""
    tree = ast.parse(Path(ROOT, *name.split(".")).with_suffix(".py").read_text())
    found: dict[str, list[str]] = {}

    def look(body: list[Any], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")
            elif (
                isinstance(node, ast.FunctionDef)
                and not node.name.startswith("_")
                and not node.decorator_list
            ):
                given = node.args
                found[prefix + node.name] = [
                    each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)
                ]

    look(tree.body, "")
    return found


def test_a_signal_interrupts_a_send_that_waits_for_room() -> None:
    full = queue(block_if_queue_full=True, max_pending_messages=1, send_timeout_millis=60_000)
    full.enqueue(b"a", None)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            full.enqueue(b"b", None)
    finally:
        timer.join()


def test_what_a_callback_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    sending = queue(batching_enabled=True, batching_max_messages=2)
    came: list[Any] = []

    def fails(result: Any, message_id: Any) -> None:
        raise LookupError("in a callback")

    sending.enqueue(b"a", fails)
    sending.enqueue(b"b", lambda result, message_id: came.append(result))
    sending.confirm([(0, 0, 0, 5, 0)])
    assert came == [pulsar_ray.Result.Ok]
    assert "LookupError: in a callback" in caplog.text


def test_users_may_inherit_messages_and_ids() -> None:
    class Named(pulsar_ray.MessageId):
        name = "mine"

        def partition(self) -> int:
            return 7

    class Upper(pulsar_ray.Message):
        def data(self) -> bytes:
            return super().data().upper()

    named = Named(1, 2, 3)
    assert (named.partition(), named.ledger_id(), named.name) == (7, 2, "mine")
    assert named == pulsar_ray.MessageId(1, 2, 3)
    assert Upper(ReceivedBlock.outgoing("t", b"text"), 0).data() == b"TEXT"


def test_values_of_wrong_types_raise_what_they_did() -> None:
    with pytest.raises(ValueError, match="must be made of ints"):
        pulsar_ray.MessageId("1", 2, 3).check()
    with pytest.raises(ValueError, match="is bytes, not str"):
        pulsar_ray.MessageId.deserialize("08")


def test_a_full_queue_times_out() -> None:
    full = queue(block_if_queue_full=True, max_pending_messages=1, send_timeout_millis=1)
    full.enqueue(b"a", None)
    with pytest.raises(Timeout):
        full.enqueue(b"b", None)


# --- wheels --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_wheel_has_the_libraries_beside_their_sources(tmp_path: Path) -> None:
    hook = importlib.import_module("hatch_build")
    if reason := hook.obstacle():
        pytest.skip(reason)
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        env={**os.environ, compiled.PURE: "0"},
    )
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith(f"-linux_{sysconfig.get_platform().split('-')[-1]}.whl")
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    package = tmp_path / "unpacked" / "pulsar_ray"
    said = run(package, "from pulsar_ray.compiled import compiled_modules; print(*compiled_modules())").stdout
    assert said.split() == sorted(LISTED)
    imported = run(package, f"import importlib; print(importlib.import_module({LISTED[0]!r}).__file__)")
    assert imported.stdout.strip().endswith(LIBRARY)
