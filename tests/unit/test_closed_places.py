"""Nothing is used that another user of the machine has put in our place, or can change."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray import closed_places
from pulsar_ray.errors import UntrustedPath
from tests.other_user import SOMEBODY, needs_root


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def of_somebody(path: Path) -> Path:
    os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
    return path


def test_a_directory_is_made_closed_whatever_the_umask(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        path = closed_places.make_closed_directory(tmp_path / "above" / "place")
    finally:
        os.umask(former)
    assert mode(path) == 0o700
    assert mode(path.parent) == 0o700
    assert closed_places.make_closed_directory(path) == path


@pytest.mark.parametrize("found", [0o755, 0o750, 0o777, 0o775, 0o2770])
def test_a_directory_of_ours_is_closed_if_all_in_it_is_ours(tmp_path: Path, found: int) -> None:
    path = tmp_path / "place"
    path.mkdir()
    (path / "file").touch()
    path.chmod(found)
    closed_places.make_closed_directory(path)
    assert mode(path) & 0o777 == 0o700


@needs_root
@pytest.mark.parametrize("found", [0o777, 0o770, 0o1777])
def test_a_directory_in_which_others_have_put_something_is_refused_again_and_again(
    tmp_path: Path, found: int
) -> None:
    path = tmp_path / "place"
    path.mkdir()
    (path / "planted").touch()
    of_somebody(path / "planted")
    path.chmod(found)
    for _ in range(2):
        with pytest.raises(UntrustedPath, match="planted"):
            closed_places.make_closed_directory(path)
        assert mode(path) == found


@needs_root
@pytest.mark.parametrize("found", [0o700, 0o777])
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, found: int) -> None:
    path = tmp_path / "place"
    path.mkdir()
    path.chmod(found)
    of_somebody(path)
    for opens in (closed_places.make_closed_directory, closed_places.open_unchanged_directory):
        with pytest.raises(UntrustedPath, match=f"user {SOMEBODY}"):
            opens(path)
    assert mode(path) == found


def links(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "elsewhere")
    return path


def dangling(tmp_path: Path) -> Path:
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "missing")
    return path


@pytest.mark.parametrize("make", [links, dangling])
def test_a_link_is_no_directory(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    for opens in (closed_places.make_closed_directory, closed_places.open_unchanged_directory):
        with pytest.raises(UntrustedPath, match="link"):
            opens(path)
    assert not (tmp_path / "missing").exists()


def test_a_file_is_made_closed_and_found_again(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        os.close(closed_places.open_own_file(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(former)
    assert mode(tmp_path / "file") == 0o600
    descriptor = closed_places.open_own_file(tmp_path / "file", os.O_RDWR | os.O_APPEND)
    assert not os.get_inheritable(descriptor)
    assert os.write(descriptor, b"line") == 4
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "second name", "writable"])
def test_a_file_that_leads_elsewhere_or_that_others_write_to_is_refused(tmp_path: Path, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "missing")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "second name":
        os.link(victim, path)
    else:
        path.touch()
        path.chmod(0o622)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(UntrustedPath):
            closed_places.open_own_file(path, flags)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "missing").exists()


@needs_root
@pytest.mark.parametrize(("others", "is_own"), [([], True), (["somebody"], False)])
def test_a_group_that_is_this_users_alone_may_write(
    others: list[str], is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("ours")
    path.chmod(0o664)  # as the umask of many systems leaves it
    user = pwd.getpwuid(os.geteuid())
    group = grp.struct_group((user.pw_name, "x", user.pw_gid, others))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    if is_own:
        os.close(closed_places.open_own_file(path, os.O_RDONLY))
    else:
        with pytest.raises(UntrustedPath, match="others may write"):
            closed_places.open_own_file(path, os.O_RDONLY)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    of_somebody(path)
    with pytest.raises(UntrustedPath, match=f"user {SOMEBODY}"):
        closed_places.open_own_file(path, os.O_RDWR)
    with pytest.raises(UntrustedPath, match=f"user {SOMEBODY}"):
        closed_places.read_trusted_file(path)


def test_what_is_not_there_is_no_matter_of_trust(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        closed_places.open_own_file(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        closed_places.open_closed_directory(tmp_path / "place")


def test_a_note_is_read_only_where_nobody_else_can_have_put_it(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(0o755)
    (place / "note").write_text("here")
    assert closed_places.read_trusted_file(place / "note") == "here"
    place.chmod(0o777)
    with pytest.raises(UntrustedPath, match="0777"):
        closed_places.read_trusted_file(place / "note")
    place.chmod(0o1777)
    with pytest.raises(UntrustedPath, match="1777"):
        closed_places.read_trusted_file(place / "note")


def test_removing_a_tree_takes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "below").mkdir(parents=True)
    (foreign / "below" / "file").touch()
    tree = tmp_path / "top" / "tree"
    (tree / "deep" / "deeper").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    (tree / "deep" / "link").symlink_to(foreign)
    (tree / "link").symlink_to(foreign / "below" / "file")
    (tmp_path / "top" / "link").symlink_to(foreign)
    directory = os.open(tmp_path / "top", os.O_RDONLY)
    try:
        for name in ("tree", "link", "missing"):
            closed_places.remove_tree(name, directory)
    finally:
        os.close(directory)
    assert list((tmp_path / "top").iterdir()) == []
    assert (foreign / "below" / "file").exists()


def test_a_tree_is_removed_where_the_directory_is_and_not_where_its_path_leads_to(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "tree").mkdir(parents=True)
    top = tmp_path / "top"
    (top / "tree").mkdir(parents=True)
    directory = os.open(top, os.O_RDONLY)
    try:
        top.rename(tmp_path / "moved")
        top.symlink_to(foreign)
        closed_places.remove_tree("tree", directory)
    finally:
        os.close(directory)
    assert (foreign / "tree").exists()
    assert not (tmp_path / "moved" / "tree").exists()
