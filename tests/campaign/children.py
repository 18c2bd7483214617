"""What a campaign breaks runs in forked processes: they have everything imported already, and are there to be
killed. The parent has one thread."""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ended:
    """What became of a child."""

    status: int
    """Exit status; of one that a signal ended, its negative number."""
    said: str
    """Standard output and standard error."""
    answer: Any
    """What its work returned, as JSON has it; None where it did not return."""
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status == -signal.SIGKILL

    @property
    def tail(self) -> str:
        """The last of what it said, for a message; of a traceback the lines of our own code."""
        lines = self.said.strip().splitlines()
        if "Traceback" not in self.said:
            return "\n".join(lines[-6:])
        ours = [line.strip() for line in lines if "/permafrost/" in line]
        return "\n".join([*ours[-6:], *lines[-2:]])


class Child:
    """A forked process at work; `ended` waits for it."""

    def __init__(self, work: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        said, self._answer = os.pipe(), os.pipe()
        self._began, self._said = time.monotonic(), said[0]
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, said[1], self._answer[1])
        os.close(said[1])
        os.close(self._answer[1])

    def ended(self, kill_after_s: float = 600.0) -> Ended:
        """Read what it says until it ends; it is killed after a time, counted from its start."""
        read = {self._said: b"", self._answer[0]: b""}
        waiting, killed = set(read), False
        while waiting:
            left = kill_after_s - (time.monotonic() - self._began)
            if left <= 0 and not killed:
                os.kill(self.pid, signal.SIGKILL)
                killed = True
            ready, _, _ = select.select(list(waiting), [], [], 1.0 if killed else max(left, 0.0))
            for end in ready:
                if piece := os.read(end, 1 << 16):
                    read[end] += piece
                else:
                    waiting.discard(end)
                    os.close(end)
        _, status = os.waitpid(self.pid, 0)
        answer = read[self._answer[0]]
        return Ended(
            status=os.waitstatus_to_exitcode(status),
            said=read[self._said].decode(errors="replace"),
            answer=json.loads(answer) if answer else None,
            seconds=time.monotonic() - self._began,
        )


def forked(work: Callable[[], object], kill_after_s: float = 600.0) -> Ended:
    """Do some work in a child and wait for its end."""
    return Child(work).ended(kill_after_s)


def answer_of(work: Callable[[], object]) -> Any:
    """What some work returns, done in a child that may not fail."""
    ended = forked(work)
    assert ended.status == 0, ended.tail
    return ended.answer


def preload(work: Callable[[], object]) -> None:
    """Import what some work imports, so that children find it there; the work itself is done in a child, as
    it may start threads."""

    def imported() -> list[str]:
        work()
        return sorted(sys.modules)

    gc.disable()
    for name in answer_of(imported):
        # Some names are of modules that others make.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


def _work(work: Callable[[], object], said: int, answer: int) -> None:
    """Ends the process, as Python ends a program: of an error that nobody catches it prints the traceback."""
    status = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        found = work()
        if found is not None:
            with os.fdopen(answer, "w") as stream:
                json.dump(found, stream)
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
