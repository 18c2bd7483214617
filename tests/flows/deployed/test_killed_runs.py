"""A run that was killed by force is listed as crashed by the next one, if it is dead for certain."""

import datetime
import logging
import os
import subprocess
import sys
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Completed, Running

from permafrost.flows.deployed.killed_runs import (
    BEAT_S,
    BOOT,
    HOST,
    MACHINE,
    PID,
    PROCESS,
    SILENT,
    Place,
    Seen,
    clear_killed_runs,
    judge,
    say_who_runs,
)
from permafrost.flows.engine.prefect import run_node
from permafrost.flows.pipeline import pipeline
from permafrost.storage.drafts import owner

NOW = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
HERE = Place("a", "boot 2", NOW - datetime.timedelta(hours=1))
ELSEWHERE = "00000000.77.1234"
"""A process of another machine, or of this one before it was started anew."""


def minutes(ago: float) -> datetime.datetime:
    return NOW - datetime.timedelta(minutes=ago)


def ended_process() -> str:
    """What a process of this machine said of itself that has ended."""
    program = "from permafrost.storage.drafts import owner; print(owner())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_process_of_this_machine_is_looked_for() -> None:
    place, pid, started = owner().split(".")
    labels = {PROCESS: owner(), PID: pid, HOST: "box", BEAT_S: 180}
    assert judge(Seen(labels, minutes(600), None), HERE, NOW).kind == "alive"
    # Another process has its number now.
    reused = labels | {PROCESS: f"{place}.{pid}.{int(started) - 1}"}
    dead = judge(Seen(reused, minutes(1), minutes(0)), HERE, NOW)
    assert (dead.kind, dead.because) == ("dead", f"process {pid} on box has ended")


@pytest.mark.parametrize(
    ("labels", "started", "heard", "kind"),
    [
        # The machine was started an hour ago, and the run was heard of before, but not after.
        ({MACHINE: "a", BOOT: "boot 1"}, 90, None, "dead"),
        ({MACHINE: "a", BOOT: "boot 1"}, 90, 70, "dead"),
        ({MACHINE: "a", BOOT: "boot 1", BEAT_S: 0}, 90, None, "dead"),
        # One that has its name was heard of since.
        ({MACHINE: "a", BOOT: "boot 1"}, 90, 2, "alive"),
        ({MACHINE: "a", BOOT: "boot 1"}, 30, None, "silent"),
        # A container of this machine, or another machine.
        ({MACHINE: "a", BOOT: "boot 2"}, 600, 14, "alive"),
        ({MACHINE: "b", BOOT: "boot 9"}, 600, 14, "alive"),
        ({MACHINE: "b", BOOT: "boot 9"}, 14, None, "alive"),
        ({MACHINE: "b", BOOT: "boot 9"}, 600, 16, "silent"),
        ({MACHINE: "", BOOT: ""}, 600, 16, "silent"),
        # Nothing can be said of one that sends no heartbeats.
        ({MACHINE: "b", BOOT: "boot 9", BEAT_S: 0}, 600, None, "unknown"),
        # It was silent when another run looked: long ago, just now, and has been heard of since.
        ({MACHINE: "b", SILENT: minutes(7).isoformat()}, 600, 60, "dead"),
        ({MACHINE: "b", SILENT: minutes(5).isoformat()}, 600, 60, "unknown"),
        ({MACHINE: "b", SILENT: minutes(60).isoformat()}, 600, 30, "silent"),
    ],
)
def test_of_other_machines_only_what_is_certain_is_said(
    labels: dict[str, Any], started: float, heard: float | None, kind: str
) -> None:
    told = {PROCESS: ELSEWHERE, PID: "77", HOST: "box", BEAT_S: 180} | labels
    seen = Seen(told, minutes(started), None if heard is None else minutes(heard))
    assert judge(seen, HERE, NOW).kind == kind
    nowhere = Place("", "", None)
    if labels.get(MACHINE) == "a" and kind == "dead":
        assert judge(seen, nowhere, NOW).kind != "dead"


def test_a_run_that_says_nothing_of_itself_is_left_alone() -> None:
    assert judge(Seen({}, minutes(9999), None), HERE, NOW).kind == "unknown"


@pytest.mark.usefixtures("prefect_server")
def test_the_next_run_clears_what_was_killed_with_its_stages_and_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(labels: dict[str, Any], state: State[Any] | None = None) -> UUID:
        with get_client(sync_client=True) as client:
            run = client.create_flow_run(pipeline, parameters={"experiment": "a.yaml"})
            client.set_flow_run_state(run.id, state or Running(), force=True)
            if labels:
                client.update_flow_run_labels(run.id, labels)
        return run.id

    said: dict[str, Any] = {}

    def keep(self: object, run: UUID, labels: dict[str, Any]) -> None:
        said.update(labels)

    with get_client(sync_client=True) as client, monkeypatch.context() as patched:
        patched.setattr(type(client), "update_flow_run_labels", keep)
        say_who_runs(uuid4())
    assert (said[PROCESS], said[PID]) == (owner(), str(os.getpid()))

    killed = {**said, PROCESS: ended_process(), PID: "77"}
    dead, alive, foreign = listed(killed), listed(said), listed({})
    away = listed({**said, PROCESS: ELSEWHERE, MACHINE: "another", BEAT_S: 30})
    with get_client(sync_client=True) as client:
        stage = client.create_task_run(run_node, dead, dynamic_key="0", state=Running())
        now = datetime.datetime.now(datetime.UTC)
        with caplog.at_level(logging.WARNING):
            clear_killed_runs(uuid4(), logging.getLogger("ours"), now)

        def state(run: UUID) -> State[Any]:
            found = client.read_flow_run(run).state
            assert found is not None
            return found

        assert state(dead).is_crashed()
        assert f"Killed by force: process 77 on {said[HOST]} has ended." == state(dead).message
        task = client.read_task_run(stage.id).state
        assert task is not None
        assert task.is_crashed()
        assert [state(run).is_running() for run in (alive, foreign, away)] == [True] * 3
        name = client.read_flow_run(dead).name
        expected = f"cleared the run {name}, which was killed: process 77 on {said[HOST]} has ended"
        assert expected in caplog.messages

        # One of another machine: it has been silent for long, and is so when it is looked at again.
        for later, is_running in ((10, True), (10.5, True), (12, False)):
            at = now + datetime.timedelta(minutes=later)
            clear_killed_runs(uuid4(), logging.getLogger("ours"), at)
            assert state(away).is_running() == is_running
        for run in (alive, foreign):
            assert state(run).is_running()
            client.delete_flow_run(run)


@pytest.mark.usefixtures("prefect_server")
def test_every_stage_of_a_killed_run_is_cleared_and_no_run_that_has_just_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("permafrost.flows.deployed.killed_runs.MOST_READ", 2)
    labels = {PROCESS: ended_process(), PID: "77", HOST: "box", BEAT_S: 30}
    with get_client(sync_client=True) as client:
        dead, ending = (
            client.create_flow_run(pipeline, parameters={"experiment": "a.yaml"}).id
            for _ in range(2)
        )
        for run in (dead, ending):
            client.set_flow_run_state(run, Running(), force=True)
            client.update_flow_run_labels(run, labels)
        stages = [
            client.create_task_run(run_node, dead, dynamic_key=str(n), state=Running()).id
            for n in range(5)
        ]
        read = type(client).read_flow_runs

        def ends_meanwhile(self: SyncPrefectClient, **asked: Any) -> list[FlowRun]:
            found = read(self, **asked)
            client.set_flow_run_state(ending, Completed(), force=True)
            return found

        monkeypatch.setattr(type(client), "read_flow_runs", ends_meanwhile)
        clear_killed_runs(uuid4(), logging.getLogger("ours"), datetime.datetime.now(datetime.UTC))
        states = [client.read_task_run(stage).state for stage in stages]
        assert all(state is not None and state.is_crashed() for state in states)
        for run, name in ((dead, "Crashed"), (ending, "Completed")):
            state = client.read_flow_run(run).state
            assert state is not None
            assert state.name == name
