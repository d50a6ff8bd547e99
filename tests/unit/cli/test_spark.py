from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.cli import spark
from pulsar_ray.cli.target import Target
from tests.unit.cli.conftest import Run


class FakeProgram:
    """Stands in for the module with Spark in it."""

    def __init__(self) -> None:
        self.started: list[tuple[str, dict[str, Any]]] = []
        self.stopped = 0

    @contextmanager
    def session_of_program(self, app_name: str, **settings: Any) -> Iterator[Any]:
        self.started.append((app_name, settings))
        try:
            yield SimpleNamespace(version="3.5")
        finally:
            self.stopped += 1


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> FakeProgram:
    fake = FakeProgram()
    monkeypatch.setattr(spark, "spark_module", lambda name: {"program": fake}[name])
    monkeypatch.setattr(spark, "_OFFERED", ("pulsar_ray",))
    return fake


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def make(text: str) -> str:
        path = tmp_path / "report.py"
        path.write_text(text)
        return str(path)

    return make


def test_a_file_gets_what_stands_behind_its_name(
    run: Run, program: FakeProgram, write: Callable[[str], str]
) -> None:
    file = write("import sys\nprint(__name__, sys.argv[1:])")
    arguments = ("--month", "11", "--conf", "x", "--help")
    result = run(Target("auto", "/data"), "spark", "run", "--executor-cores", "2", file, *arguments)
    assert (result.exit_code, result.stdout) == (
        0,
        "__main__ ['--month', '11', '--conf', 'x', '--help']\n",
    )
    ((name, settings),) = program.started
    assert name == "report"
    assert settings == {
        "num_executors": None,
        "executor_cores": 2,
        "executor_memory": None,
        "conf": {},
        "service_url": "auto",
        "data_dir": "/data",
    }
    assert program.stopped == 1


def test_settings_of_spark_are_passed_on(run: Run, program: FakeProgram, write: Callable[[str], str]) -> None:
    given = ("--conf", "spark.a=1", "--conf", "spark.b=x=y", "--num-executors", "3")
    assert run(Target(), "spark", "run", *given, write("")).exit_code == 0
    ((_, settings),) = program.started
    assert settings["conf"] == {"spark.a": "1", "spark.b": "x=y"}
    assert settings["num_executors"] == 3


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no such month')", 1, "no such month\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_the_exit_code_is_the_files(
    run: Run, program: FakeProgram, write: Callable[[str], str], text: str, code: int, said: str
) -> None:
    result = run(Target(), "spark", "run", write(text))
    assert (result.exit_code, result.stderr) == (code, said)
    assert program.stopped == 1


def test_an_error_is_shown_from_the_files_first_line_on(
    run: Run, program: FakeProgram, write: Callable[[str], str]
) -> None:
    file = write("def months():\n    return 1 / 0\n\nmonths()\n")
    result = run(Target(), "spark", "run", file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f'Traceback (most recent call last):\n  File "{file}", line 4')
    assert "ZeroDivisionError" in result.stderr
    assert "cli/spark.py" not in result.stderr


def test_spark_does_not_start_for_a_file_that_is_no_python(
    run: Run, program: FakeProgram, write: Callable[[str], str]
) -> None:
    result = run(Target(), "spark", "run", write("def\n"))
    assert result.exit_code == 1
    assert "SyntaxError" in result.stderr
    assert program.started == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run",), "Missing argument 'FILE'"),
        (("run", "no-such-file.py"), "no-such-file.py"),
        (("run", "--executor-coers", "2", "f.py"), "--executor-cores"),
        (("run", "--executor-cores", "0", "f.py"), "--executor-cores"),
        (("run", "--conf", "spark.a", "f.py"), "'spark.a' is no KEY=VALUE"),
        (("--executor-cores", "2", "run", __file__), "give these options behind run"),
        (("walk",), "walk"),
    ],
)
def test_wrong_arguments_are_named(
    run: Run, program: FakeProgram, arguments: tuple[str, ...], named: str
) -> None:
    result = run(Target(), "spark", *arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert program.started == []


def test_statements_of_a_pipe_have_the_session(run: Run, program: FakeProgram) -> None:
    result = run(Target(), "spark", input="for _ in range(2):\n    print(spark.version)\n")
    assert (result.exit_code, result.stdout) == (0, "3.5\n3.5\n")
    failed = run(Target(), "spark", input="print(pulsar_ray.__name__)\nno_such_name\n")
    assert (failed.exit_code, failed.stdout) == (1, "pulsar_ray\n")
    assert "NameError" in failed.stderr
    assert program.stopped == 2


@pytest.mark.parametrize("command", ["spark", "demo"])
def test_without_spark_one_line_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def import_module(name: str) -> Any:
        if name in ("pulsar_ray_spark.program", "pulsar_ray_spark.demo"):
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return real(name)

    lazy_modules: Any = importlib.import_module("pulsar_ray_spark.lazy_modules")
    real = lazy_modules.import_module
    monkeypatch.setattr(lazy_modules, "import_module", import_module)
    result = run(Target(), command)
    assert result.exit_code == 1
    assert "pip install 'pulsar-ray[spark]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
