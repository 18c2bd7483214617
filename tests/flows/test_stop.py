"""Signals to small programs: when the process leaves, with which code, and what it does before."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time
from pathlib import Path

import pytest

from permafrost.flows.stopping import STOP, Stopped

BOUND_S = 2.0
"""What people and schedulers are promised, from the signal to the end of the process."""

FRAME = """
import sys, threading, time
from permafrost.flows.stopping import STOP

def say(word):
    print(word, flush=True)

def program():
{body}

with STOP.listening():
    program()
"""


def _with_defaults() -> None:
    """What started the tests, a shell in the background or nohup, may have them ignore signals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _take_terminal() -> None:
    _with_defaults()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Program:
    """A program that has said `ready`."""

    def __init__(self, body: str, *, before: str = "") -> None:
        code = before + FRAME.format(body=textwrap.indent(textwrap.dedent(body), "    "))
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_with_defaults,
        )
        self.wait_for("ready")

    def wait_for(self, word: str) -> None:
        """Wait until it says this, next of all."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self._process.pid, number)

    def send(self, number: int) -> tuple[int, str, str, float]:
        """Send the last signal; exit code, what was printed, what went to standard error, and the seconds it
        took."""
        started = time.monotonic()
        self.signal(number)
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out, err, time.monotonic() - started


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, 130, "Ctrl-C"),
        (signal.SIGTERM, 143, "SIGTERM"),
        (signal.SIGHUP, 129, "SIGHUP"),
    ],
)
def test_work_ends_at_its_next_step(number: int, code: int, name: str) -> None:
    program = Program(
        """
        with STOP.orderly(), STOP.last_act(lambda: say("last act")):
            say("ready")
            try:
                while True:
                    time.sleep(0.01)
                    STOP.check()
            finally:
                say("ended in order")
        """
    )
    ended, out, err, seconds = program.send(number)
    assert ended == code
    assert out == "ended in order\n"
    assert (
        err
        == f"stopped by {name}: what was committed is kept, the same command goes on from there\n"
    )
    assert seconds < BOUND_S


STUCK = """
with STOP.orderly(), STOP.last_act(lambda: say("last act")), STOP.last_act(lambda: time.sleep(60)):
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(60,)).start()
    say("ready")
    {wait}
"""


@pytest.mark.parametrize("wait", ["time.sleep(60)", "threading.Event().wait()"])
def test_work_that_does_not_end_is_left(wait: str) -> None:
    code, out, err, seconds = Program(STUCK.format(wait=wait)).send(signal.SIGTERM)
    assert code == 143
    assert out == "last act\n"
    assert err.startswith("stopped by SIGTERM")
    assert seconds < BOUND_S


def test_acts_that_do_not_end_share_the_time_that_is_left() -> None:
    acts = ", ".join(["STOP.last_act(lambda: time.sleep(60), 0.6)"] * 8)
    code, out, _, seconds = Program(
        f"""
        with STOP.orderly(), STOP.last_act(lambda: say("last act")), {acts}:
            say("ready")
            time.sleep(60)
        """
    ).send(signal.SIGTERM)
    assert (code, out) == (143, "last act\n")
    assert seconds < BOUND_S


def test_who_catches_everything_does_not_keep_the_process() -> None:
    code, _, err, seconds = Program(
        """
        say("ready")
        while True:
            try:
                STOP.check()
            except:  # what is tested: even code that swallows everything must not keep the process
                pass
        """
    ).send(signal.SIGINT)
    assert (code, "Traceback" in err) == (130, False)
    assert seconds < BOUND_S


def test_a_handler_of_somebody_else_does_not_hide_the_signal() -> None:
    """Prefect puts its own in place of ours while a flow runs; it may be quicker than our thread."""
    code, _, err, _ = Program(
        """
        import signal
        sys.setswitchinterval(10)  # no other thread runs before the handler has done its work
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(77))
        say("ready")
        time.sleep(60)
        """
    ).send(signal.SIGTERM)
    assert code == 143
    assert err.startswith("stopped by SIGTERM")


def test_a_second_sigterm_interrupts_no_last_act() -> None:
    """Prefect's worker passes on what its run was told already, and outside Prefect's own handler waits."""
    program = Program(
        """
        with STOP.orderly():
            say("ready")
            while True:
                STOP.check()
        """,
        before="""
import signal, time
from permafrost.flows.stopping import STOP

def interrupt(*_):
    raise KeyboardInterrupt

def tell():
    print("telling", flush=True)
    time.sleep(0.3)
    print("told", flush=True)

signal.signal(signal.SIGTERM, interrupt)
act = STOP.last_act(tell, 1.0)
act.__enter__()
""",
    )
    program.signal(signal.SIGTERM)
    program.wait_for("telling")
    code, out, err, _ = program.send(signal.SIGTERM)
    assert (code, out, "Traceback" in err) == (143, "told\n", False)


def test_a_second_ctrl_c_leaves_at_once() -> None:
    wait = 'STOP._asked.wait(); say("heard"); time.sleep(60)'
    body = STUCK.format(wait=wait).replace(
        "STOP.last_act(lambda: time.sleep(60))", "STOP.orderly()"
    )
    slow = "import permafrost.flows.stopping; permafrost.flows.stopping.GRACE_S = 3600\n"
    program = Program(body, before=slow)
    program.signal(signal.SIGINT)
    # Two that arrive before the process has run once are one signal to it.
    program.wait_for("heard")
    code, out, _, seconds = program.send(signal.SIGINT)
    assert (code, out) == (130, "last act\n")
    assert seconds < BOUND_S


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_an_ignored_signal_stays_ignored(name: str) -> None:
    code, out, err, _ = Program(
        """
        say("ready")
        time.sleep(0.3)
        say("finished")
        """,
        before=f"import signal; signal.signal(signal.{name}, signal.SIG_IGN)\n",
    ).send(getattr(signal, name))
    assert (code, out, err) == (0, "finished\n", "")


def _in_a_terminal(body: str) -> tuple[subprocess.Popen[bytes], int]:
    """A program that has said `ready`, and its terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", FRAME.format(body=textwrap.indent(textwrap.dedent(body), "    "))],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    # To the end of the line, as closing the terminal while that is written would end the program.
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(master, 64)
    assert said.strip() == b"ready"
    return process, master


def test_the_end_of_its_terminal_stops_a_process_that_prints() -> None:
    body = """
        with STOP.orderly():
            say("ready")
            try:
                while True:
                    time.sleep(0.01)
                    STOP.check()
            finally:
                say("to nobody")
    """
    process, master = _in_a_terminal(body)
    started = time.monotonic()
    os.close(master)
    assert process.wait(timeout=60) == 129
    assert time.monotonic() - started < BOUND_S


def test_who_ignores_the_end_of_its_terminal_goes_on_with_the_bars_and_all_it_prints(
    tmp_path: Path,
) -> None:
    body = f"""
        import os, signal
        from pathlib import Path
        from permafrost.flows.engine.progress import Display
        from permafrost.flows.terminal import Terminal, echo

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        say("ready")
        while os.isatty(1):
            time.sleep(0.01)
        with Display(Terminal(force_terminal=True)) as display:
            bar = display.open("a fit", 10, "steps")
            time.sleep(0.3)  # the bars are drawn by a thread of theirs
            display.move(bar, 1)
            display.say("above the bars")
            display.tell("a note")
            print("by a plug-in")
        echo("a line")
        Terminal().print("a table")
        Terminal(stderr=True).print("an error")
        Path({str(tmp_path / "ended")!r}).write_text("well")
    """
    process, master = _in_a_terminal(body)
    os.close(master)
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "ended").read_text() == "well"


def test_handlers_are_given_back() -> None:
    earlier = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    n_threads = threading.active_count()
    with STOP.listening():
        assert signal.getsignal(signal.SIGTERM) != earlier[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == earlier
    assert threading.active_count() == n_threads


def test_stopped_is_no_failure_to_be_handled() -> None:
    assert not issubclass(Stopped, Exception)
