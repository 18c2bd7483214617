"""A scheduler and workers as people start them: with the lines of docs/workers.md, on a free port."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.ports import free_port

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "workers.md"
DEADLINE_S = 300.0
GIVEN_IS_GONE = (
    r"the Dask scheduler tcp://127\.0\.0\.1:\d+ is gone, and with it what its workers were computing; what "
    r"was committed is kept: start a scheduler and workers, then run the same command again, which goes on "
    r"from there"
)
"""How a run ends whose scheduler, which somebody else started, is gone."""


def documented() -> list[str]:
    """The lines for one machine with two GPUs: a scheduler, two workers with a GPU, others, the run."""
    section = PAGE.read_text().partition("## One machine with two GPUs")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return block.splitlines()


class PlainDask:
    """Processes of Dask in a folder; `end` ends them all."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, line: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a line that begins with variables, or with `dask`."""
        words = line.replace("tcp://127.0.0.1:8786", self.address).split()
        variables = dict(w.split("=", 1) for w in words[: words.index("dask")])
        words = words[words.index("dask") + 1 :]
        if words[0] == "scheduler":
            words += ["--port", str(self.port), "--dashboard-address", "127.0.0.1:0"]
        else:
            words += ["--name", name, "--local-directory", str(self._folder / "scratch")]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "dask", *words],
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    **variables,
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def scheduler(self) -> None:
        """Start the scheduler, and wait until it answers."""
        self.start("scheduler", documented()[0])
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._processes["scheduler"].poll() is None, self.said("scheduler")
            assert time.monotonic() < deadline, self.said("scheduler")
            time.sleep(0.05)

    def family(self, name: str) -> list[psutil.Process]:
        """A process and those it has started."""
        process = psutil.Process(self._processes[name].pid)
        return [process, *process.children(recursive=True)]

    def kill(self, name: str) -> None:
        """SIGKILL to a process and those it has started."""
        for process in self.family(name):
            process.send_signal(signal.SIGKILL)
        self._processes.pop(name).wait()

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a process has printed a text."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.said(name):
            assert self._processes[name].poll() is None, self.said(name)
            assert time.monotonic() < deadline, self.said(name)
            time.sleep(0.05)

    def said(self, name: str) -> str:
        """What it printed."""
        return (self._folder / f"{name}.log").read_text()

    def end(self) -> None:
        """End all that still run."""
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                self.kill(name)
