"""The services of docker/compose.yaml, as processes on a real PostgreSQL, up to nightly runs."""

import json
import logging
import shutil
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker import postgresql
from tests.docker.plain_processes import BUSY_S, HEALTHY_S, STOP_S, Box, compose
from tests.flows.conftest import tiny_experiment
from tests.stages.extraction.tiny_models import save_model

SERVERS = ("server", "scheduler", "gpu-worker", "cpu-worker", "runner", "cpu-runner")
ONCE = ("pool", "cpu-pool", "deployment")
"""They end by themselves."""
OF_THE_OTHERS = ("cpu-worker", "cpu-runner", "cpu-pool")
"""What a run that extracts does without when nothing is to be computed."""


@pytest.fixture
def box() -> Iterator[Box]:
    # Not pytest's own folder: nobody else may look into it.
    folder = Path(tempfile.mkdtemp(prefix="permafrost-box-"))
    folder.chmod(0o755)
    # Every minute in place of every night.
    box = Box(
        folder, {"PERMAFROST_CRON": "* * * * *", "PERMAFROST_EXPERIMENT": "/experiments/tiny.yaml"}
    )
    try:
        yield box
    finally:
        box.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(box: Box) -> Iterator[postgresql.PostgreSQL]:
    if postgresql.programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    box.secret.write_text("p@ss/w:ord #1%")
    settings = dict(compose()["services"]["database"]["environment"])
    settings["POSTGRES_PASSWORD_FILE"] = str(box.secret)
    folder = box.folder / "database"
    folder.mkdir(mode=0o700)
    server = postgresql.PostgreSQL(folder, settings, box.port("5432"))
    try:
        yield server
    finally:
        server.stop()


ATTEMPTS = 3
"""On a machine that is busy with other things, a run may not get to telling the server within its time."""


def up(box: Box, without: Sequence[str] = ()) -> None:
    """Start everything in the order that the file asks for."""
    for service in box.order(*(s for s in (*SERVERS, *ONCE) if s not in without)):
        if service in ONCE:
            box.run(service)
        else:
            box.start_healthy(service)


def ask(box: Box, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    """Prefect's API."""
    request = urllib.request.Request(
        f"{box.api}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        said = response.read()
    return json.loads(said) if said else None


def until(box: Box, condition: Callable[[], Any], what: str) -> Any:
    """Wait for a truthy value."""
    deadline = time.monotonic() + HEALTHY_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        box.check()
        time.sleep(0.2)
    pytest.fail(f"no {what} after {HEALTHY_S} s; {story(box)}\n{box.said()}")


def story(box: Box) -> str:
    """Every run and the states that it went through."""
    lines = []
    for run in ask(box, "flow_runs/filter", {"sort": "START_TIME_ASC"}):
        states = ask(box, f"flow_run_states/?flow_run_id={run['id']}", None, "GET")
        went = "\n".join(f"  {s['timestamp']} {s['name']}: {s['message']}" for s in states)
        lines.append(f"{run['name']} ({run['id']})\n{went}")
    return "\n".join(["the runs:", *lines])


def runs(box: Box, *states: str) -> list[dict[str, Any]]:
    """Flow runs in these states, the first first."""
    found = ask(box, "flow_runs/filter", {"sort": "START_TIME_ASC"})
    return [run for run in found if run["state_type"] in states]


def nodes(box: Box, run: dict[str, Any]) -> Counter[str]:
    """The states of a run's nodes."""
    found = ask(box, "task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    return Counter(r["state_name"] for r in found)


def published(box: Box) -> dict[Path, int]:
    """The receipts of all artifacts, with the time each was written."""
    folder = box.folder / "data" / "home" / "artifacts"
    found = (p for p in folder.glob("*/*/artifact.json") if not p.parent.name.startswith("."))
    return {path: path.stat().st_mtime_ns for path in found}


def newer(box: Box, n_known: int) -> dict[Path, int] | None:
    """What is published, once it is more than so many artifacts."""
    found = published(box)
    return found if len(found) > n_known else None


@pytest.mark.timeout(900)
@pytest.mark.night
@pytest.mark.deep
def test_from_an_empty_box_to_nightly_runs_which_a_stop_only_interrupts(
    box: Box, database: postgresql.PostgreSQL
) -> None:
    experiments = box.folder / "experiments"
    (experiments / "backbone").mkdir()
    save_model("bert", experiments / "backbone")
    document = tiny_experiment(experiments / "backbone")
    (experiments / "tiny.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    for path in (experiments / "backbone", *experiments.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    up(box)
    deployments = {d["name"]: d for d in ask(box, "deployments/filter", {})}
    assert deployments.keys() == {"nightly", "extract", "downstream", "watch"}
    crons = {d["schedules"][0]["schedule"]["cron"] for d in deployments.values() if d["schedules"]}
    assert crons == {"* * * * *", "*/10 * * * *"}
    assert {d["work_pool_name"] for d in deployments.values()} == {"gpu", "cpu"}
    schedules = {name: d["schedules"] for name, d in deployments.items() if d["schedules"]}
    active = {name: schedule["active"] for name, (schedule,) in schedules.items()}
    assert active == {"nightly": True, "watch": False}

    # A stop in the middle of a run: all is over in time, what was published stays, and the server is told.
    took: dict[str, float] = {}
    for _ in range(ATTEMPTS):
        known = len(published(box))
        (run,) = until(box, lambda: runs(box, "RUNNING"), "run")
        before = until(box, lambda n=known: newer(box, n), "published artifact")
        took["runner"] = box.services["runner"].stop()
        assert runs(box, "COMPLETED") == []
        assert {path: published(box)[path] for path in before} == before
        # The worker may have begun to submit the next one when its place was free.
        told = [ended for ended in runs(box, "CRASHED") if ended["id"] == run["id"]]
        if told:
            break
        ask(box, f"flow_runs/{run['id']}", None, "DELETE")
        box.start_healthy("runner")
    assert told, f"{story(box)}\n{box.said()}"
    assert "SIGTERM" in told[0]["state"]["message"]

    # The next one goes on from there.
    box.start_healthy("runner")
    (second, *_) = until(box, lambda: runs(box, "COMPLETED"), "completed run")
    assert second["auto_scheduled"]
    record = json.loads((box.folder / "data" / "home" / "runs" / "tiny.json").read_text())
    assert record["engine"] == "dask"
    for worker in ("gpu-worker", "cpu-worker"):
        assert "Starting Worker plugin permafrost" in box.services[worker].log.read_text()
    after = published(box)
    assert {path: after[path] for path in before} == before
    until(box, lambda: sum(nodes(box, second).values()) == 41, "record of every node")
    assert nodes(box, second)["Cached"] >= len(before)

    ask(box, "work_pools/gpu", {"concurrency_limit": 3}, "PATCH")
    # Everything stops in time.
    for service in reversed(SERVERS):
        took[service] = box.services[service].stop()
    database.stop()
    said = ", ".join(f"{service} {seconds:.2f} s" for service, seconds in took.items())
    logging.getLogger(__name__).info("ended after SIGTERM: %s", said)
    assert max(took.values()) < STOP_S + BUSY_S, said

    # The same volumes and new containers: nothing is computed again, and Prefect knows what was, and what a
    # person set of a pool.
    database.start()
    up(box, without=OF_THE_OTHERS)
    assert ask(box, "work_pools/gpu", None, "GET")["concurrency_limit"] == 3
    assert second["id"] in [run["id"] for run in runs(box, "COMPLETED")]
    known = len(runs(box, "COMPLETED"))
    third = until(box, lambda: runs(box, "COMPLETED")[known:], "run after the start")[0]
    until(box, lambda: nodes(box, third) == {"Cached": 41}, "record of every node")
    assert published(box) == after
