"""A process of ours that serves us: it says where once it does, and ends when we do, however that happens."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from permafrost.flows.stopping import STOP
from permafrost.storage.errors import PermafrostError

ENDING_S = 5.0
"""How long it may take to end by itself."""


@dataclass(frozen=True)
class Program:
    """A Python file that prints one line once it serves, and ends when its standard input does."""

    name: str
    """For people: `Prefect's server`."""
    file: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """In addition to ours."""
    patience_s: float
    """How long it may take to start."""
    advice: tuple[str, str]
    """What to do when it takes longer, and when it ends instead."""


@contextlib.contextmanager
def companion(program: Program, check: Callable[[], None] = STOP.check) -> Generator[str]:
    """What the program says; it ends with the block, and what it started too: at once if the block was
    interrupted.

    Args:
        program: what is started.
        check: called until it serves; raises when nobody waits for that any more.

    Raises:
        PermafrostError: it did not start.
    """
    process = subprocess.Popen(
        # -P: nothing in the folder where we are, or in ours, may pass for a package that it imports.
        [sys.executable, "-P", program.file, *program.arguments],
        # Its end of this pipe tells it when we are gone, however that happens.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **program.environment},
        # Out of the terminal's process group: Ctrl-C is for us.
        start_new_session=True,
    )

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.stdin is not None
    with process, STOP.last_act(kill):
        patience_s = 0.0
        try:
            yield _first_line(process, program, check)
            patience_s = ENDING_S
        except Exception:
            patience_s = ENDING_S
            raise
        finally:
            process.stdin.close()
            try:
                process.wait(0 if STOP.asked else patience_s)
            except subprocess.TimeoutExpired:
                kill()


def _first_line(
    process: subprocess.Popen[bytes], program: Program, check: Callable[[], None]
) -> str:
    assert process.stdout is not None
    slow, ended = program.advice
    deadline = time.monotonic() + program.patience_s
    while not select.select([process.stdout], [], [], 0.1)[0]:
        check()
        if time.monotonic() > deadline:
            raise PermafrostError(
                f"{program.name} did not start within {program.patience_s:g} s; {slow}"
            )
    line = process.stdout.readline().decode().strip()
    if not line:
        raise PermafrostError(
            f"{program.name} ended with exit code {process.wait()} instead of starting; what it said is "
            f"above. {ended}"
        )
    return line
