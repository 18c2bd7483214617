"""What a flow run tells the server when it is stopped."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import os, signal, threading, time
from types import SimpleNamespace
from uuid import UUID, uuid4
from permafrost.flows.deployed import flow_run
from permafrost.flows.stopping import STOP

run = uuid4()
flow_run.this_run = SimpleNamespace(id=str(run))
flow_run.is_deployed = lambda: True
flow_run.say_who_runs = lambda told: None
flow_run.clear_killed_runs = lambda *told: None

def record(stopped: UUID) -> None:
    assert stopped == run
    print("told", flush=True)

flow_run._record_stop = record

with flow_run.inside_flow_run(), STOP.orderly():
    os.kill(os.getpid(), signal.SIGTERM)
{work}
"""

WORK = {
    "looks between steps": "while True:\n    STOP.check()",
    "waits": "STOP.wait_for(threading.Event())",
    "does not look": "time.sleep(60)",
}


@pytest.mark.deep
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(work, id=name, marks=() if name == "waits" else pytest.mark.deep)
        for name, work in WORK.items()
    ],
)
def test_the_server_is_told_before_a_stopped_run_leaves(work: str) -> None:
    code = PROGRAM.format(work=textwrap.indent(work, "    "))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "told\n", done.stderr
    assert done.returncode == 128 + signal.SIGTERM
