"""Ctrl-C, SIGTERM, SIGHUP: work ends at its next step, and the process soon after, whatever it is doing."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, NoReturn

GRACE_S = 1.0
"""How long work may take to end by itself; then the process leaves. Less than the two seconds after which
schedulers and people lose patience."""
TIDY_S = 0.2
"""How long one act of tidying up may take when time is short."""
ACTS_S = 0.75
"""How long all of them may take together; so that the process has left within two seconds of the signal."""
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""By signal, for people; SIGHUP comes when the terminal is closed, or its connection is lost."""
_BEGUN_S = 0.01
SHOW_CURSOR = b"\x1b[?25h"


class Stopped(BaseException):
    """The process was asked to stop. No `Exception`: what handles failures must not take it for one."""


class Stop:
    """Whether the process was asked to stop, and how it leaves.

    Every commit is atomic, so leaving by force loses nothing that was committed.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._asked = threading.Event()
        self._orderly = 0
        self._last_acts: list[tuple[Callable[[], object], float]] = []
        self._leaving = threading.Lock()
        self._ending: set[Future[Any]] = set()
        """Work that was told to end, and has not yet."""

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._asked.is_set()

    @property
    def ends_the_process(self) -> bool:
        """Whether a signal asked; else only what runs is to end, and the process goes on (`until`)."""
        return self._signal is not None

    def check(self) -> None:
        """Call between the steps of long work.

        Raises:
            Stopped: the process was asked to stop.
        """
        if self.asked:
            raise Stopped

    def wait_for(self, event: threading.Event) -> None:
        """Wait for an event.

        Raises:
            Stopped: the process was asked to stop meanwhile.
        """
        while not event.wait(0.1):
            self.check()

    def until(self, work: "Future[Any]") -> None:
        """Have work end at its next step, in a program that goes on; waits for it. Whatever else runs in this
        process and looks ends too.
        """
        self._ending.add(work)
        self._asked.set()
        # By the work itself: who waits may be interrupted again.
        work.add_done_callback(self._forget)
        self._wait_until_ended([work])

    def settle(self, tell: Callable[[], object]) -> None:
        """Wait for work that was told to end (`until`) and is still ending, as who waited for it was
        interrupted again; `tell` is called first if there is any."""
        if ending := list(self._ending):
            tell()
            self._wait_until_ended(ending)

    def _wait_until_ended(self, ending: "list[Future[Any]]") -> None:
        wait(ending)
        for work in ending:
            # Its callback may come later, and was never added if an interrupt came first.
            self._forget(work)

    def _forget(self, work: "Future[Any]") -> None:
        self._ending.discard(work)
        if not self._ending and self._signal is None:
            self._asked.clear()

    @property
    def cause(self) -> str:
        """What stopped the process, for people; it was asked."""
        assert self._signal is not None, "nobody asked the process to stop"
        return NAMES[signal.Signals(self._signal)]

    @contextlib.contextmanager
    def orderly(self) -> Generator[None]:
        """Work that checks between its steps: it is given `GRACE_S` to end. Other work is not waited for."""
        self._orderly += 1
        try:
            yield
        finally:
            self._orderly -= 1

    @contextlib.contextmanager
    def last_act(self, act: Callable[[], object], seconds: float = TIDY_S) -> Generator[None]:
        """Have `act` done before the process leaves, if it is asked to stop inside the block.

        It is waited for at most so many seconds.
        """
        entry = (act, seconds)
        self._last_acts.append(entry)
        try:
            yield
        finally:
            self._last_acts.remove(entry)

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take the signals of `NAMES` inside the block; for the main thread of a program.

        A thread of its own learns of a signal at once: Python runs handlers in the main thread, which may
        be inside a long call, and Prefect puts a handler of its own in place of ours. A signal that is
        ignored (nohup) stays so. Work that fails after a signal has come fails because of it: the process
        leaves, also where somebody else's handler was quicker than the thread.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        handled = [s for s in NAMES if signal.getsignal(s) != signal.SIG_IGN]
        earlier = [signal.signal(s, _do_nothing) for s in handled]
        earlier_fd = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        listener = threading.Thread(
            target=self._listen, args=(read,), name="permafrost-signals", daemon=True
        )
        listener.start()
        failed = True
        try:
            yield
            failed = False
        except SystemExit as end:
            failed = bool(end.code)
            raise
        finally:
            signal.set_wakeup_fd(earlier_fd)
            os.close(write)
            # It reads what is left in the pipe first.
            listener.join()
            os.close(read)
            if failed and self.asked:
                # Before handlers are given back, as another signal would interrupt it.
                self.leave()
            for number, handler in zip(handled, earlier, strict=True):
                signal.signal(number, handler)

    def _listen(self, read: int) -> None:
        while got := os.read(read, 1):
            if got[0] not in NAMES:
                continue
            if not self.asked:
                self._signal = got[0]
                self._asked.set()
                threading.Thread(target=self._leave_in_time, daemon=True).start()
            elif got[0] == signal.SIGINT:
                # Somebody has no patience. A second SIGTERM may be Prefect's, which passes the first on.
                self.leave()

    def _leave_in_time(self) -> None:
        if self._orderly:
            threading.Event().wait(GRACE_S)
        self.leave()

    def leave(self) -> NoReturn:
        """End the process: last acts, one line, exit code 128 + signal."""
        assert self._signal is not None, "nobody asked the process to stop"
        # Whoever comes second waits here for the end.
        self._leaving.acquire()
        children = multiprocessing.active_children()
        acts = (*(c.kill for c in children), _flush)
        end = time.monotonic() + ACTS_S
        for act, seconds in (*reversed(self._last_acts), *((act, TIDY_S) for act in acts)):
            # Each is begun: what does not wait for anything is done in no time.
            _in_time(act, min(seconds, max(end - time.monotonic(), _BEGUN_S)))
        line = f"stopped by {self.cause}: what was committed is kept, the same command goes on from there\n"
        # The terminal may be gone.
        if os.isatty(1):
            with contextlib.suppress(OSError):
                os.write(1, SHOW_CURSOR)
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(128 + self._signal)


def _do_nothing(number: int, frame: object) -> None:
    """In place of Python's own handlers; the listening thread does what there is to do."""


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _in_time(act: Callable[[], object], seconds: float) -> None:
    """Do one thing, but do not wait for it long: a thread that never ends may hold the lock it needs."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)


STOP = Stop()
"""The one of this process: signals are the process's, too."""
