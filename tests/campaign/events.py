"""The moments at which a process changes files: what happens at one of them is what a fault can spoil.

Python tells of each by an audit event before it happens, whoever opens, renames or removes, and `os.fsync` is
counted as well. Bytes that a library of C or Rust writes into an open file are no events of their own:
what is done at an event lasts, so that these are met too.
"""

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NAMES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
_MAKING = {"open", "os.mkdir", "os.fsync"}
"""Events for which a full disk has no room, each time; a rename finds none only if it is the first."""

At = Callable[[int, str, str], None]
"""Told the number of an event, from 1, its name and its file, before it happens; may raise or kill."""


def watch(folders: tuple[Path, ...], at: At) -> None:
    """From now on `at` is told of every change below some folders in this process; for a child, as no audit
    hook can be taken away."""
    below = tuple(f"{folder}/" for folder in folders)
    count, busy = 0, False

    def tell(name: str, path: str) -> None:
        nonlocal count, busy
        count, busy = count + 1, True
        try:
            at(count, name, path)
        finally:
            busy = False

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        if busy or (name != "open" and name not in _NAMES):
            return
        if name == "open":
            flags = arguments[2]
            if not (isinstance(flags, int) and flags & _CHANGING):
                return
        path = arguments[0]
        # What is removed with a folder is named relative to it.
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str | Path) and (
            os.fspath(path).startswith(below) or (name != "open" and not Path(path).is_absolute())
        ):
            tell(name, os.fspath(path))

    flush = os.fsync

    def fsync(fd: int) -> None:
        tell("os.fsync", "")
        flush(fd)

    sys.addaudithook(hook)
    os.fsync = fsync


def watched(folders: tuple[Path, ...], at: At, work: Callable[[], object]) -> Callable[[], object]:
    """Some work during which `at` is told of every change."""

    def watching() -> object:
        watch(folders, at)
        return work()

    return watching


def counted(folders: tuple[Path, ...], work: Callable[[], object]) -> Callable[[], object]:
    """Some work that answers how many events there were."""

    def counting() -> int:
        n = 0

        def note(number: int, name: str, path: str) -> None:
            nonlocal n
            n = number

        watch(folders, note)
        try:
            work()
        except SystemExit as ending:
            if ending.code:
                raise
        return n

    return counting


def killing(at: int) -> At:
    """SIGKILL at an event."""

    def kill(number: int, name: str, path: str) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def filling(at: int) -> At:
    """No room from an event on: no byte is added to any file, by whatever library, no folder is made, and
    nothing can be flushed. Every other time a file can still be opened, and what is written to it fails."""

    def fill(number: int, name: str, path: str) -> None:
        if number < at:
            return
        if number == at:
            # Of this process alone; Python ignores the signal that comes with it.
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            if name == "open" and at % 2:
                return
        if name in _MAKING or (number == at and name == "os.rename"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return fill


def forbidding(at: int) -> At:
    """Nothing can be changed from an event on, as where a right was taken away or a disk is read-only now."""

    def forbid(number: int, name: str, path: str) -> None:
        if number >= at and name != "os.fsync":
            code = errno.EACCES if at % 2 else errno.EROFS
            raise OSError(code, os.strerror(code), path)

    return forbid
