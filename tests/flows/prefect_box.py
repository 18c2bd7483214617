"""The deployments of prefect.yaml on a real server with real workers, on loopback."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


class Box:
    """A machine with a Prefect server and workers of its own."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/api"
        self.folder = folder
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "DO_NOT_TRACK": "1",
            "PWD": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._running = ExitStack()

    def prefect(self, *arguments: str) -> str:
        """Run a prefect command to its end."""
        return self._run("-m", "prefect", "--no-prompt", *arguments)

    def python(self, program: str) -> str:
        """Run a program to its end; what it prints."""
        return self._run("-c", program)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a prefect command that keeps running, in a process group of its own."""
        log = self._running.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running.callback(_end, process)
        return process

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the server's API."""
        return self._send(path, body, "POST")

    def get(self, path: str) -> Any:
        """Read something from the server."""
        return self._send(path, None, "GET")

    def _send(self, path: str, body: dict[str, Any] | None, method: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.loads(response.read() or "null")
            except urllib.error.HTTPError as error:
                # A server whose database is locked says so, and wants to be asked again.
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            except TimeoutError:
                # On a machine that is busy with other things; what only reads may be asked for again.
                only_reads = method == "GET" or path.endswith("/filter")
                if not only_reads or time.monotonic() > deadline:
                    raise
            time.sleep(1)

    def runs(self, *states: str) -> list[dict[str, Any]]:
        """Flow runs in these states, the first first."""
        found = self.post("flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run for run in found if run["state_type"] in states]

    def start_run(self, deployment: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a run of a deployment, `flow/deployment`; its id."""
        found = self.get(f"deployments/name/{deployment}")
        body = {"parameters": parameters or {}, "state": {"type": "SCHEDULED"}}
        return self.post(f"deployments/{found['id']}/create_flow_run", body)["id"]

    def ended(self, run: str) -> dict[str, Any]:
        """A run, once it has ended."""
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        def found() -> dict[str, Any] | None:
            one = self.get(f"flow_runs/{run}")
            return one if one["state_type"] in final else None

        return until(found, f"end of the run {run}", self)

    def healthy(self) -> bool:
        """Whether the server answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def deploy(self, changed: dict[str, Any]) -> None:
        """Start the server, make the work pools and register these deployments."""
        self.start("server", "server", "start")
        until(self.healthy, "healthy server", self)
        for pool in sorted({d["work_pool"]["name"] for d in changed["deployments"]}):
            self.prefect("work-pool", "create", pool, "--type", "process")
        path = self.folder / "prefect.yaml"
        path.write_text(yaml.safe_dump(changed))
        self.prefect("deploy", "--all", "--prefect-file", str(path))

    def work(self, pool: str) -> subprocess.Popen[bytes]:
        """Start a worker, as docs/nightly.md has it."""
        return self.start(
            f"worker-{pool}", "worker", "start", "--pool", pool, "--type", "process", "--limit", "1"
        )

    def logs(self) -> str:
        """What server and worker printed."""
        return "\n".join(p.read_text()[-3000:] for p in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End what was started."""
        self._running.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition: Callable[[], Any], what: str, box: Box) -> Any:
    """Wait for a truthy value."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(1)
    pytest.fail(f"no {what} after {DEADLINE_S} s\n{box.logs()}")


def deployments(parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What prefect.yaml says, with other parameters for all deployments; and each by its name."""
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    by_name = {d["name"]: d for d in document["deployments"]}
    for deployment in by_name.values():
        deployment["parameters"] |= parameters
    return document, by_name
