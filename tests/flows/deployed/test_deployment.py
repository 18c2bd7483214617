"""The deployments of prefect.yaml on a real server and real workers: bad nights, killed runs, new texts."""

import contextlib
import json
import os
import signal
import threading
import urllib.error
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.running import run_serially
from tests.flows.prefect_box import ROOT, Box, deployments, until
from tests.flows.watching.test_news import FIRST, NEW, experiment, rows, to_jsonl


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    try:
        yield box
    finally:
        box.stop()


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web server on loopback: its address, and what it was sent."""
    heard: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def notify(box: Box, address: str) -> None:
    """Apply automations.yaml, as docs/nightly.md has it."""
    program = (
        "from prefect.blocks.webhook import Webhook; "
        f"print(Webhook(url={address!r}).save('failed-runs', overwrite=True))"
    )
    assert program.replace(repr(address), "'ADDRESS'") in (ROOT / "docs" / "nightly.md").read_text()
    block = box.python(program).strip()
    written = (ROOT / "automations.yaml").read_text()
    automations = box.folder / "automations.yaml"
    automations.write_text(written.replace("00000000-0000-0000-0000-000000000000", block))
    box.prefect("automation", "create", "--from-file", str(automations))


def stage_states(box: Box, run: dict[str, Any], wanted: int) -> Counter[str]:
    """States of a run's stages, once so many are recorded."""

    def states() -> Counter[str] | None:
        found = box.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        counted = Counter(r["state_name"] for r in found)
        return counted if counted["Completed"] + counted["Cached"] == wanted else None

    return until(states, f"{wanted} recorded stages", box)


@pytest.mark.timeout(900)
@pytest.mark.night
@pytest.mark.deep
def test_a_night_that_fails_is_told_and_spoils_no_other_and_a_killed_one_is_cleared(
    box: Box, experiment_file: Path, tmp_path: Path
) -> None:
    fields = yaml.safe_load(experiment_file.read_text()) | {"seeds": [0]}
    written = yaml.safe_dump(fields, sort_keys=False)
    experiment_file.write_text(written.replace("seeds:", "seds:"))
    document, by_name = deployments(
        {"experiment": str(experiment_file), "home": str(tmp_path / "home")}
    )
    nightly = by_name["nightly"]
    # The nightly schedule stays, elsewhere; a second one fires within the test's time.
    nightly["schedules"][0]["timezone"] = "Asia/Tokyo"
    nightly["schedules"].append({"interval": 20, "active": True, "slug": "soon"})
    box.deploy(document)

    # Two in the morning in Tokyo is 17:00 UTC. The server makes a schedule's runs some seconds later.
    def at_two() -> list[dict[str, Any]]:
        return [r for r in box.runs("SCHEDULED") if "T17:00:00" in r["expected_start_time"]]

    until(at_two, "run at two in the morning in Tokyo", box)

    # What is given is checked against the config models before a run is made.
    with pytest.raises(urllib.error.HTTPError) as refused:
        box.start_run("pipeline/nightly", {"runtime": {"extract": {"batch_tokens": 0}}})
    assert refused.value.code in (409, 422)
    assert "0 is less than the minimum of 1" in refused.value.read().decode()

    with webhook() as (address, heard):
        notify(box, address)
        worker = box.work("gpu")
        failed = box.ended(box.start_run("pipeline/nightly"))
        assert failed["state_type"] == "FAILED"
        assert "seds: there is no such field" in failed["state"]["message"]
        (told, *_) = until(lambda: heard, "call of the webhook", box)
        assert told["text"].startswith("Permafrost: pipeline tiny is Failed: ")
        assert "seds: there is no such field" in told["text"]

    experiment_file.write_text(written)
    first, second = until(
        lambda: done if len(done := box.runs("COMPLETED")) > 1 else [], "two good nights", box
    )[:2]
    assert first["auto_scheduled"]
    assert second["auto_scheduled"]
    assert not box.runs("CRASHED"), box.logs()
    assert stage_states(box, first, 25) == {"Completed": 25}
    assert stage_states(box, second, 25) == {"Cached": 25}
    assert first["state"]["message"].startswith("25 computed, 0 reused, 0 failed in ")
    assert second["state"]["message"].startswith("nothing new: 0 computed, 25 reused, 0 failed in ")

    # The worker first, which would tell of it; then its run.
    def under_way() -> dict[str, Any] | None:
        running = [r for r in box.runs("RUNNING") if "permafrost.pid" in r["labels"]]
        return running[0] if running else None

    run = until(under_way, "run under way", box)
    os.killpg(worker.pid, signal.SIGSTOP)
    os.kill(int(run["labels"]["permafrost.pid"]), signal.SIGKILL)
    os.killpg(worker.pid, signal.SIGKILL)
    assert box.get(f"flow_runs/{run['id']}")["state_type"] == "RUNNING"
    box.work("cpu")
    watch = box.ended(box.start_run("watch/watch"))
    assert watch["state"]["message"].startswith("nothing new in 2 corpora, in ")
    cleared = box.get(f"flow_runs/{run['id']}")
    assert cleared["state_type"] == "CRASHED"
    pid = run["labels"]["permafrost.pid"]
    assert f"Killed by force: process {pid} on " in cleared["state"]["message"]


@pytest.mark.timeout(900)
@pytest.mark.deep
def test_new_rows_are_seen_extracted_and_used_downstream(
    box: Box, tiny_bert: Path, tmp_path: Path
) -> None:
    data, file = tmp_path / "train.jsonl", tmp_path / "watched.yaml"
    to_jsonl(data, rows(0, FIRST))
    source = {"kind": "files", "files": {"train": str(data)}}
    file.write_text(yaml.safe_dump(experiment(tiny_bert, source)))
    home = tmp_path / "home"
    document, by_name = deployments({"experiment": str(file), "home": str(home)})
    by_name["watch"]["parameters"]["settle_s"] = 0
    box.deploy(document)
    for pool in ("gpu", "cpu"):
        box.work(pool)

    def look() -> str:
        watch = box.ended(box.start_run("watch/watch"))
        assert watch["state_type"] == "COMPLETED", watch["state"]["message"]
        return watch["state"]["message"]

    def of(flow: str) -> list[dict[str, Any]]:
        (found,) = box.post("flows/filter", {"flows": {"name": {"any_": [flow]}}})
        return [r for r in box.runs("COMPLETED") if r["flow_id"] == found["id"]]

    run_serially(file, home)
    to_jsonl(data, rows(FIRST, NEW))
    said = look()
    assert f"{NEW} texts new" in said
    assert "; started extract/extract: " in said
    until(lambda: of("downstream"), "downstream run", box)
    assert len(of("extract")) == 1
    assert look().startswith("nothing new in 1 corpus, in ")
    extracted, used = of("extract")[-1], of("downstream")[-1]
    assert extracted["state"]["message"].startswith("2 computed, 0 reused, 0 failed in ")
    assert extracted["parameters"]["runtime"] == {"extract": {"busy": "wait"}}
    assert used["parameters"] == {"experiment": str(file), "home": str(home)}
    runs = json.loads((home / "runs" / "watched.json").read_text())
    assert any(ref.startswith("report/") for ref in runs["artifacts"])
