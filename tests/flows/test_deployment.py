"""The deployment in prefect.yaml on a real server and a real worker, on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


class Box:
    """A machine with a Prefect server and worker of its own."""

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
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *arguments: str) -> None:
        """Start a prefect command that keeps running."""
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

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the server's API."""
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def healthy(self) -> bool:
        """Whether the server answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def logs(self) -> str:
        """What server and worker printed."""
        return "\n".join(p.read_text()[-3000:] for p in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End what was started."""
        self._running.close()


def _end(process: subprocess.Popen[bytes]) -> None:
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


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    try:
        yield box
    finally:
        box.stop()


@pytest.mark.timeout(600)
@pytest.mark.deep
def test_scheduled_run_completes_and_the_next_one_reuses_everything(
    box: Box, experiment_file: Path, tmp_path: Path
) -> None:
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    (deployment,) = document["deployments"]
    assert deployment["schedules"][0]["cron"]
    deployment["parameters"] = {"experiment": str(experiment_file), "home": str(tmp_path / "home")}
    # The nightly schedule stays; a second one fires within the test's time.
    deployment["schedules"].append({"interval": 20, "active": True, "slug": "soon"})
    changed = tmp_path / "prefect.yaml"
    changed.write_text(yaml.safe_dump(document))

    box.start("server", "server", "start")
    until(box.healthy, "healthy server", box)
    pool = deployment["work_pool"]["name"]
    box.prefect("work-pool", "create", pool, "--type", "process")
    box.prefect("deploy", "--all", "--prefect-file", str(changed))
    box.start("worker", "worker", "start", "--pool", pool, "--type", "process")

    def finished() -> list[dict[str, Any]]:
        runs = box.post("flow_runs/filter", {"sort": "START_TIME_ASC"})
        failed = [r for r in runs if r["state_type"] in ("FAILED", "CRASHED")]
        assert not failed, box.logs()
        done = [r for r in runs if r["state_type"] == "COMPLETED"]
        return done if len(done) >= 2 else []

    first, second = until(finished, "two finished scheduled runs", box)[:2]
    assert first["auto_scheduled"]
    assert second["auto_scheduled"]

    def stage_states(run: dict[str, Any], wanted: int) -> Counter[str]:
        def states() -> Counter[str] | None:
            found = box.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
            counted = Counter(r["state_name"] for r in found)
            return counted if counted["Completed"] + counted["Cached"] == wanted else None

        return until(states, f"{wanted} recorded stages", box)

    assert stage_states(first, 41) == {"Completed": 41}
    assert stage_states(second, 41) == {"Cached": 41}
    upcoming = box.post(
        "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    )
    at_two = [r for r in upcoming if "T02:00:00" in r["expected_start_time"]]
    assert at_two, "the cron schedule made no runs"
    assert shutil.which("prefect", path=box.environment["PATH"])
