"""Runs that were killed by force: Prefect lists them as running until the next run says that they are dead.

A run says which process it is. The next one looks at those that are listed as running, and clears one that is
dead for certain: its process has ended, on this machine; or this machine was started anew since; or, of a run
of another machine or container, nothing has been heard for long, and that twice.
"""

import datetime
import hashlib
import itertools
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import (
    EventFilter,
    EventNameFilter,
    EventResourceFilter,
)
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Crashed

from permafrost.storage.drafts import is_alive, owner

FLOWS = ("pipeline", "extract", "downstream", "watch")
"""Names of our flows."""
PROCESS, HOST, PID, MACHINE, BOOT, BEAT_S, SILENT = (
    f"permafrost.{name}"
    for name in ("process", "host", "pid", "machine", "boot", "heartbeat_s", "silent_since")
)
"""Labels of a run. The last is of one that was not heard of when another run looked."""
BEATS = 5
"""Heartbeats that may be missing."""
MOST_READ = 200
"""Runs that a server tells of at once."""
_HEARTBEAT = "prefect.flow-run.heartbeat"

Labels = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a process runs."""

    machine: str
    """Digest of what tells machines apart; empty where nothing does."""
    boot: str
    """Of the machine's latest start; empty if it is not known."""
    booted: datetime.datetime | None
    """When that was."""


@dataclass(frozen=True)
class Seen:
    """What is known of a run that is listed as running."""

    labels: Labels
    started: datetime.datetime
    heard: datetime.datetime | None
    """Its last heartbeat; None if the server knows of none."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run is dead."""

    kind: Literal["alive", "dead", "silent", "unknown"]
    """`silent`: not heard of for the first time."""
    because: str = ""


def here() -> Place:
    """Where this process runs."""
    name, boot = _read("/etc/machine-id"), _read("/proc/sys/kernel/random/boot_id")
    facts = f"{socket.gethostname()}\n{name}"
    machine = hashlib.sha256(facts.encode()).hexdigest()[:16] if name and boot else ""
    seconds = next((s for s in _read("/proc/stat").splitlines() if s.startswith("btime ")), "")
    booted = None
    if seconds:
        booted = datetime.datetime.fromtimestamp(int(seconds.split()[1]), datetime.UTC)
    return Place(machine, boot, booted)


def say_who_runs(run: UUID) -> None:
    """Tell the server which process a run is."""
    place = here()
    _, pid, _ = owner().split(".")
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(
            run,
            {
                PROCESS: owner(),
                HOST: socket.gethostname(),
                PID: pid,
                MACHINE: place.machine,
                BOOT: place.boot,
                BEAT_S: get_current_settings().flows.heartbeat_frequency or 0,
            },
        )


def judge(seen: Seen, place: Place, now: datetime.datetime) -> Verdict:
    """Whether a run is dead, for someone at a place and time."""
    labels = seen.labels
    if not (process := str(labels.get(PROCESS, ""))):
        return Verdict("unknown")
    who = f"process {labels.get(PID)} on {labels.get(HOST)}"
    if (alive := is_alive(process)) is not None:
        return Verdict("alive") if alive else Verdict("dead", f"{who} has ended")
    heard = max(seen.heard or seen.started, seen.started)
    if _was_started_anew(labels, place, heard):
        return Verdict("dead", f"{labels.get(HOST)}, where it ran, was started anew since")
    beat_s, silent_s = float(labels.get(BEAT_S, 0)), (now - heard).total_seconds()
    if not beat_s:
        return Verdict("unknown")
    if silent_s < BEATS * beat_s:
        return Verdict("alive")
    told, first = f"{who} has not been heard of for {silent_s / 60:.0f} minutes", labels.get(SILENT)
    if first is None or (since := datetime.datetime.fromisoformat(str(first))) < heard:
        return Verdict("silent", told)
    # The server may have been away when heartbeats were sent: it had time to hear others since.
    had_time = (now - since).total_seconds() > 2 * beat_s
    return Verdict("dead", told) if had_time else Verdict("unknown")


def _was_started_anew(labels: Labels, place: Place, heard: datetime.datetime) -> bool:
    """Whether a run was of this machine before its latest start; not of another one of its name, which would
    have been heard of since."""
    if not place.machine or labels.get(MACHINE) != place.machine:
        return False
    other_boot = labels.get(BOOT) not in ("", None, place.boot)
    return other_boot and place.booted is not None and heard < place.booted


def clear_killed_runs(
    but: UUID, log: logging.Logger | logging.LoggerAdapter[Any], now: datetime.datetime
) -> None:
    """Have the server list runs as crashed that were killed by force, and tell the log.

    Args:
        but: the run that asks.
        log: told what was cleared.
        now: the time.
    """
    place = here()
    with get_client(sync_client=True) as client:
        for run in _listed_as_running(client, but):
            started = run.start_time or run.expected_start_time or now
            # Of a process of this machine there is a surer sign.
            ours = is_alive(str(run.labels[PROCESS])) is not None
            heard = None if ours else _heard(client, run)
            verdict = judge(Seen(run.labels, started, heard), place, now)
            if verdict.kind == "silent":
                client.update_flow_run_labels(run.id, {SILENT: now.isoformat()})
            # It may have reported its end since it was listed.
            if verdict.kind == "dead" and not _is_over(client, run):
                _clear(client, run, verdict.because)
                log.warning("cleared the run %s, which was killed: %s", run.name, verdict.because)


def _listed_as_running(client: SyncPrefectClient, but: UUID) -> Sequence[FlowRun]:
    states = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    found = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOWS))),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)),
        limit=MOST_READ,
    )
    return [run for run in found if run.id != but and PROCESS in run.labels]


def _heard(client: SyncPrefectClient, run: FlowRun) -> datetime.datetime | None:
    page = client.read_events(
        EventFilter(
            event=EventNameFilter(name=[_HEARTBEAT]),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
        ),
        limit=1,
    )
    return page.events[0].occurred if page.events else None


def _clear(client: SyncPrefectClient, run: FlowRun, because: str) -> None:
    cancelling = run.state is not None and run.state.is_cancelling()
    message = f"Killed by force: {because}."
    # Of Prefect's own states, as its pages and automations know them.
    final = Cancelled(message=message) if cancelling else Crashed(message=message)
    for task in _under_way(client, run):
        client.set_task_run_state(task, Crashed(message=message), force=True)
    client.set_flow_run_state(run.id, final, force=True)


def _is_over(client: SyncPrefectClient, run: FlowRun) -> bool:
    state = client.read_flow_run(run.id).state
    return state is not None and state.is_final()


def _under_way(client: SyncPrefectClient, run: FlowRun) -> list[UUID]:
    """The stages of a run that have not ended."""
    found: list[UUID] = []
    for offset in itertools.count(0, MOST_READ):
        page = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
            limit=MOST_READ,
            offset=offset,
        )
        found += [task.id for task in page if task.state is None or not task.state.is_final()]
        if len(page) < MOST_READ:
            break
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
