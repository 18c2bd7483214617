"""The command line in a terminal of its own, as a user has it: Ctrl-C reaches the whole process group."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

CTRL_C = b"\x03"
DEADLINE_S = 280


class TerminalSession:
    """`permafrost ARGUMENTS` on a pseudo-terminal; use as a context manager."""

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        code = (
            "import sys; from permafrost.flows.cli import main; sys.argv[0] = 'permafrost'; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **environment},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.pid, self.shown = self._process.pid, ""

    def __enter__(self) -> "TerminalSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows `text`."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.shown}"
            assert self._process.poll() is None, self.shown
            self._read(0.2)

    def press(self, keys: bytes) -> None:
        """Type at the terminal."""
        os.write(self._master, keys)

    def end(self) -> tuple[int, float]:
        """Exit code, and the seconds until the process ended."""
        started = time.monotonic()
        while self._process.poll() is None:
            assert time.monotonic() < started + 60, f"it does not end:\n{self.shown}"
            self._read(0.02)
        seconds = time.monotonic() - started
        while self._read(0.05):
            pass
        return self._process.returncode, seconds

    def children(self) -> list[int]:
        """Processes that it started."""
        found = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for path in found for pid in path.read_text().split()]

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            got = os.read(self._master, 1 << 16)
        except OSError:  # nobody has the other end open any more
            return False
        self.shown += got.decode(errors="replace")
        return bool(got)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A shell that started the tests in the background has them ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
