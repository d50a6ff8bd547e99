"""Opens files and directories that no other user has put there or can change.

A well-known name in a place that others may write to, such as `/tmp`, can be taken by anybody beforehand: by
a directory of theirs, or by a link to a file of ours. So what lies there is opened first, without following a
link, and then the open descriptor is looked at, which nobody can exchange any more. Root is trusted, since
root can do everything anyway.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from pulsar_ray.errors import UntrustedPath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe that lies there must not make the open wait for somebody who never comes.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CLOSED_FILE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_trusted_user(uid: int) -> bool:
    """Whether a user may do in our name whatever he likes: we ourselves, and root."""
    return uid in (os.geteuid(), 0)


def make_closed_directory(path: Path) -> Path:
    """Make a directory with mode 0700, or close one of ours that is there.

    Missing parents are made too. Returns the path. Raises UntrustedPath as `open_closed_directory`, OSError.
    """
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    os.close(open_closed_directory(path))
    return path


def open_closed_directory(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Open a directory of ours, and take the rights of group and others away.

    Returns the descriptor. Raises UntrustedPath for a link, for a directory of somebody else, and for one in
    which others could write until now and have; it stays as it was then. OSError if it is not there.
    """
    descriptor = _opened(path, _DIRECTORY, dir_fd)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise _of_another(path, found.st_uid)
        close_to_others(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def close_to_others(descriptor: int, path: Path | str) -> None:
    """Take the rights of group and others away from an open directory of ours.

    Raises UntrustedPath, and leaves the directory as it was, if others could write there and something in it
    is somebody else's. OSError.
    """
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if not mode & _OTHERS:
        return
    if mode & _OTHERS_WRITE:
        _refuse_planted(descriptor, path, mode)
    os.fchmod(descriptor, mode & ~_OTHERS)
    if mode & _OTHERS_WRITE:
        # Again, for what came in between.
        _refuse_planted(descriptor, path, mode)


def open_own_file(
    path: Path | str, flags: int, *, dir_fd: int | None = None, is_from_root: bool = False
) -> int:
    """Open a regular file of ours without following a link.

    One that is made has mode 0600; with `is_from_root` one of root's will do. Returns the descriptor. Raises
    UntrustedPath for a link, for a file that is somebody else's, that others may write to, or that has
    another name elsewhere; OSError.
    """
    descriptor = _opened(path, flags | _FILE, dir_fd)
    try:
        _check_file(path, os.fstat(descriptor), is_from_root=is_from_root)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_trusted_file(path: Path) -> str:
    """Read a file that we or root have written where nobody else may write.

    Raises UntrustedPath if another user owns one of both, or may write to it; OSError, ValueError.
    """
    directory = open_unchanged_directory(path.parent)
    try:
        descriptor = open_own_file(path.name, os.O_RDONLY, dir_fd=directory, is_from_root=True)
    finally:
        os.close(directory)
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


def open_unchanged_directory(path: Path | str) -> int:
    """Open, as it is, a directory of ours or root's where nobody else may write.

    Returns the descriptor. Raises UntrustedPath, OSError.
    """
    descriptor = open_trusted_directory(path)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _OTHERS_WRITE:
        os.close(descriptor)
        raise UntrustedPath(f"others may write in {path} (mode {mode:04o})")
    return descriptor


def open_trusted_directory(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Open a directory of ours or of root's, though others may write there.

    Returns the descriptor, through which its entries are to be reached, each to be looked at by itself.
    Raises UntrustedPath for a link and for a directory of somebody else, OSError.
    """
    descriptor = _opened(path, _DIRECTORY, dir_fd)
    uid = os.fstat(descriptor).st_uid
    if not is_trusted_user(uid):
        os.close(descriptor)
        raise _of_another(path, uid)
    return descriptor


def open_trusted_file(path: Path | str) -> int:
    """Open a regular file of ours or of root's for reading.

    Others may be able to write to it.

    Returns the descriptor. Raises UntrustedPath for a link, for a file of somebody else and for what is no
    file, OSError.
    """
    descriptor = _opened(path, os.O_RDONLY | _FILE, None)
    found = os.fstat(descriptor)
    if is_trusted_user(found.st_uid) and stat.S_ISREG(found.st_mode):
        return descriptor
    os.close(descriptor)
    if not is_trusted_user(found.st_uid):
        raise _of_another(path, found.st_uid)
    raise UntrustedPath(f"{path} is no regular file: remove it")


def remove_tree(name: str, dir_fd: int) -> None:
    """Remove an entry of an open directory, and everything below.

    A link is removed, never what it leads to. An entry that cannot be removed, or has gone meanwhile, is
    passed over.
    """
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=dir_fd)
            return
        # fwalk opens each directory, and looks whether it opened what it had seen.
        for _, directories, files, descriptor in os.fwalk(
            name, topdown=False, follow_symlinks=False, dir_fd=dir_fd
        ):
            for file in files:
                _remove(file, descriptor)
            for directory in directories:
                _remove(directory, descriptor)
        os.rmdir(name, dir_fd=dir_fd)


def _remove(name: str, dir_fd: int) -> None:
    with contextlib.suppress(OSError):
        try:
            os.rmdir(name, dir_fd=dir_fd)
        except NotADirectoryError:
            os.unlink(name, dir_fd=dir_fd)


def _opened(path: Path | str, flags: int, dir_fd: int | None) -> int:
    try:
        return os.open(path, flags, _CLOSED_FILE, dir_fd=dir_fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise UntrustedPath(f"{path} is a link, which is not followed here: remove it") from error
            if not is_trusted_user(found.st_uid):
                raise _of_another(path, found.st_uid) from error
        raise


def _check_file(path: Path | str, found: os.stat_result, *, is_from_root: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedPath(f"{path} is no regular file: remove it")
    if found.st_uid != os.geteuid() and not (is_from_root and found.st_uid == 0):
        raise _of_another(path, found.st_uid)
    if found.st_mode & _OTHERS_WRITE and not _is_of_own_group(found):
        raise UntrustedPath(f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):04o})")
    if found.st_nlink > 1:
        raise UntrustedPath(f"{path} is another name of a file that lies elsewhere too: remove it")


def _is_of_own_group(found: os.stat_result) -> bool:
    """Whether only a group may write that has nobody in it but this user.

    Many systems give each user one, and let it write to whatever the user makes.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    is_own = (group.gr_name, group.gr_gid) == (user.pw_name, user.pw_gid)
    return is_own and set(group.gr_mem) <= {user.pw_name} and not found.st_mode & stat.S_IWOTH


def _refuse_planted(descriptor: int, path: Path | str, mode: int) -> None:
    # Each entry is looked at through the descriptor, whatever the path leads to by now.
    with os.scandir(descriptor) as found:
        for entry in found:
            if not is_trusted_user(entry.stat(follow_symlinks=False).st_uid):
                raise UntrustedPath(
                    f"others may write in {path} (mode {mode:04o}) and have put {entry.name!r} there: look "
                    f"at what it holds, remove what is not yours, and `chmod 700 {shlex.quote(str(path))}`"
                )


def _of_another(path: Path | str, uid: int) -> UntrustedPath:
    return UntrustedPath(
        f"{path} belongs to user {uid}, not to user {os.geteuid()}: whoever made it could change what lies "
        "there; have it removed, or `chown` it once you know what it holds"
    )


@contextlib.contextmanager
def short_socket_path(data_dir: Path, name: str) -> Iterator[tuple[str, int]]:
    """Give a short path of a socket in `run`, and the owner of `run`."""
    directory = os.open(data_dir / "run", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}", os.fstat(directory).st_uid
    finally:
        os.close(directory)


def bound_socket(data_dir: Path, name: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Bind a socket in `run`, in place of one that a former process left.

    It does not block. Raises UntrustedPath if another user has made the directory, OSError.
    """
    make_closed_directory(data_dir / "run")
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        with short_socket_path(data_dir, name) as (path, _):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            bound.bind(path)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
