"""How containers end: in time, whatever their program does, and Prefect's worker after its runs."""

import signal
import subprocess
import sys
import time

import pytest

from tests.docker.plain_processes import BUSY_S, ENTRY, ROOT, STOP_S

RUNNER = ROOT / "docker" / "runner.sh"
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print("deaf", flush=True)
time.sleep(600)
"""
# A worker as Prefect's: at SIGTERM it sends itself SIGINT, and kills its run at once.
WORKER = """
import os, signal, subprocess, sys
run = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
try:
    status = run.wait()
    print("the run ended with", status, flush=True)
    signal.pause()
except KeyboardInterrupt:
    run.kill()
    print("the worker ended", flush=True)
"""
RUN = """
import signal, sys, time
def end(*_):
    time.sleep(0.3)
    print("the server is told", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("running", flush=True)
time.sleep(600)
"""


def start(*command: str) -> "subprocess.Popen[str]":
    """Start a command that says when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def stop(process: "subprocess.Popen[str]") -> tuple[float, str]:
    """How long it took to end after SIGTERM, and what it still said."""
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    return time.monotonic() - started, said


@pytest.mark.deep
def test_a_program_that_does_not_end_is_ended() -> None:
    process = start(str(ENTRY), sys.executable, "-c", DEAF)
    took, _ = stop(process)
    assert process.returncode in (137, -signal.SIGKILL)
    assert 1.0 < took < STOP_S + BUSY_S


@pytest.mark.deep
def test_a_worker_s_runs_end_before_it() -> None:
    process = start(str(ENTRY), str(RUNNER), sys.executable, "-c", WORKER, RUN)
    took, said = stop(process)
    assert said.splitlines() == [
        "the server is told",
        "the run ended with 143",
        "the worker ended",
    ]
    assert took < STOP_S + BUSY_S


@pytest.mark.deep
def test_a_run_that_does_not_end_is_not_waited_for() -> None:
    process = start(str(ENTRY), str(RUNNER), sys.executable, "-c", WORKER, DEAF)
    took, said = stop(process)  # which waits until nobody can say anything any more
    assert "the run ended" not in said
    assert took < STOP_S + BUSY_S


def test_a_worker_s_exit_code_is_its_own() -> None:
    assert subprocess.run([str(RUNNER), "sh", "-c", "exit 3"], check=False).returncode == 3
