"""System calls that the standard library has on newer Linux only.

It lacks them where Python was built with older headers.

Not every build of a Python that runs on Linux 6 was made there. They are called through the C library under
any Python, so that there is one way, which every test takes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

MFD_CLOEXEC = 0x1
MFD_ALLOW_SEALING = 0x2
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SHRINK = 0x2
F_SEAL_GROW = 0x4

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100

# Younger system calls have one number on all architectures that Ray runs on.
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434


def pidfd_open(pid: int) -> int:
    """A descriptor that names that very process. Raises OSError, ProcessLookupError if there is none."""
    return _done(_libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)))


def pidfd_send_signal(descriptor: int, signal: int) -> None:
    """Signal the very process that a pidfd names. Raises OSError, ProcessLookupError if it is gone."""
    number, nothing = ctypes.c_long(_PIDFD_SEND_SIGNAL), ctypes.c_void_p(None)
    _done(_libc.syscall(number, ctypes.c_int(descriptor), ctypes.c_int(signal), nothing, ctypes.c_uint(0)))


def memfd_create(name: str, flags: int = MFD_CLOEXEC) -> int:
    """A descriptor of new memory. Raises OSError."""
    try:
        create = _libc.memfd_create  # its number is not the same everywhere
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no memfd_create") from None
    return _done(create(os.fsencode(name), ctypes.c_uint(flags)))


def exchange(first: Path, second: Path) -> None:
    """Give two files or directories each other's names at once.

    Raises OSError: of ENOENT if one is not there, of EINVAL or ENOSYS if the file system cannot.
    """
    try:
        rename = _libc.renameat2  # its number is not the same everywhere
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no renameat2") from None
    here = ctypes.c_int(_AT_FDCWD)
    names = os.fsencode(first), os.fsencode(second)
    _done(rename(here, names[0], here, names[1], ctypes.c_uint(_RENAME_EXCHANGE)))


def _done(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_libc = ctypes.CDLL(None, use_errno=True)
