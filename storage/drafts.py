"""Ownership of drafts: a draft's name identifies its process, so that others can tell when it is dead."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

DRAFT_PREFIX = ".draft-"
"""Prefix of unfinished writes; nothing reads them, and `gc` removes those of dead processes."""
STALE_S = 24 * 3600
"""Age beyond which what names no process and was not written to since is nobody's."""
RUNNING_S = 30 * 24 * 3600
"""Age beyond which work of another machine that has not ended cannot be going on."""
_OWNER = re.compile(r"-([0-9a-f]{8})\.([0-9]+)\.([0-9]+)-[0-9a-f]+$")
_PLACES = (
    f"{DRAFT_PREFIX}*",
    f"*/{DRAFT_PREFIX}*",
    f"artifacts/*/{DRAFT_PREFIX}*",
    f"runs/*/{DRAFT_PREFIX}*",
    f"runs/*/*/{DRAFT_PREFIX}*",
)
_INSIDE_CHECKPOINTS = f"artifacts/*/{DRAFT_PREFIX}*-checkpoint/{DRAFT_PREFIX}*"


def owner() -> str:
    """This process, for the name of a draft: `<place>.<pid>.<start>`; pids are reused, start times are
    not."""
    return _named(os.getpid())


def draft_path(path: Path) -> Path:
    """A new private name beside `path`, on the same file system."""
    return path.with_name(f"{DRAFT_PREFIX}{path.name}-{owner()}-{uuid.uuid4().hex[:8]}")


@lru_cache(maxsize=1)
def _named(pid: int) -> str:
    started = _state_and_start(pid)
    return f"{_place()}.{pid}.{started[1] if started else 0}"


def is_of_dead_process(draft: Path) -> bool:
    """Whether a draft belonged to a process of this machine that has ended.

    False for drafts of other machines, of other containers and from before the last boot, which only their
    age can tell, and for those that name no process, such as a fit's checkpoints, which the next run resumes.
    """
    found = _OWNER.search(draft.name)
    return found is not None and is_alive(".".join(found.groups())) is False


def is_abandoned(draft: Path) -> bool:
    """Whether nobody can be writing a draft any more. A folder is as old as what was put into it last, so age
    says nothing where the process is known to live: a training fills its draft at the end."""
    if (found := _OWNER.search(draft.name)) is None:
        return _age_s(draft) > STALE_S
    alive = is_alive(".".join(found.groups()))
    return _age_s(draft) > RUNNING_S if alive is None else not alive


def _age_s(path: Path) -> float:
    return time.time() - path.lstat().st_mtime


def is_alive(process: str) -> bool | None:
    """Whether a process runs, by what `owner` said in it; None if it is of another machine or container, or
    from before the last boot."""
    place, pid, started = process.split(".")
    if place != _place():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    now = _state_and_start(int(pid))
    # A zombie has ended too; its parent has not reaped it yet.
    return now is None or (now[0] not in "ZX" and now[1] == int(started))


def files_here(folder: Path) -> Iterator[Path]:
    """Every file under a folder that is not in a draft, which is its writer's. What goes meanwhile is left
    out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(DRAFT_PREFIX)]
        yield from (Path(parent) / name for name in names if not name.startswith(DRAFT_PREFIX))


def remove_drafts_of_dead_processes(home: Path) -> int:
    """Remove what killed runs left under a home; returns the number of files and folders removed.

    Drafts in feature stores are left to their writers, which remove them under the write lease.
    """
    return _remove_dead(
        {p for pattern in (*_PLACES, _INSIDE_CHECKPOINTS) for p in _glob(home, pattern)}
    )


def remove_dead_drafts_of(path: Path) -> int:
    """Remove what killed processes left beside a file or folder that they were writing outside any home;
    returns the number removed."""
    beside, prefix = path.absolute().parent, f"{DRAFT_PREFIX}{path.name}"
    if not beside.is_dir():
        return 0
    named = ((p, _OWNER.search(p.name)) for p in beside.iterdir() if p.name.startswith(prefix))
    return _remove_dead(p for p, found in named if found and p.name[: found.start()] == prefix)


def _glob(home: Path, pattern: str) -> Iterator[Path]:
    """As `Path.glob`, which before Python 3.13 raises when a folder goes while it looks; what it has not seen
    then is left to the next run."""
    with contextlib.suppress(FileNotFoundError):
        yield from home.glob(pattern)


def _remove_dead(drafts: Iterable[Path]) -> int:
    dead = [p for p in drafts if is_of_dead_process(p)]
    for draft in dead:
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
    return len(dead)


@lru_cache(maxsize=1)
def _place() -> str:
    """Digest of the scope in which a pid is unique: host, boot and, for containers, the pid namespace."""
    facts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        try:
            facts.append(read())
        except OSError:
            facts.append("")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """State letter of a process and its start in clock ticks since boot; None on systems without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])
