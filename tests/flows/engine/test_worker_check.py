"""A worker that differs is refused, by what; one that does not gets the mark that our nodes ask for."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from permafrost.flows.engine import worker_check
from permafrost.flows.engine.worker_check import LIBRARIES, WorkerCheck, facts_here


class Worker:
    """As much of a Dask worker as the check touches."""

    def __init__(self) -> None:
        self.address, self.status = "tcp://host:1", Status.running
        self.name, self.memory_manager = "one", SimpleNamespace(memory_limit=None)
        self.state = SimpleNamespace(total_resources={"GPU": 1})
        self.told: list[Any] = []

    async def set_resources(self, **resources: float) -> None:
        self.state.total_resources |= resources

    def log_event(self, topic: str, message: Any) -> None:
        self.told.append((topic, message))


def checked(facts: dict[str, str], marker: str = "") -> tuple[str, dict[str, float]]:
    """The problem that a worker tells, and its resources afterwards."""
    worker = Worker()
    asyncio.run(WorkerCheck("mark", facts, marker, "topic").setup(worker))  # pyright: ignore[reportArgumentType]
    ((topic, message),) = worker.told
    assert topic == "topic"
    assert [message[name] for name in ("address", "name", "limit")] == ["tcp://host:1", "one", 0]
    return message["problem"], worker.state.total_resources


def test_a_worker_like_us_gets_the_mark(tmp_path: Path) -> None:
    assert checked(facts_here(), str(tmp_path)) == ("", {"GPU": 1, "mark": 1})


@pytest.mark.parametrize("fact", ["Python", *LIBRARIES, "permafrost's code"])
def test_each_difference_is_named_with_both_values(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = facts_here()
    assert fact in ours
    monkeypatch.setattr(worker_check, "facts_here", lambda: ours | {fact: "1.2.3"})
    assert checked(ours) == (f"has {fact} 1.2.3 where this process has {ours[fact]}", {"GPU": 1})


def test_a_home_that_is_not_seen_is_named(tmp_path: Path) -> None:
    problem, resources = checked(facts_here(), str(tmp_path / "elsewhere" / "seen"))
    assert problem == f"does not see the home {tmp_path / 'elsewhere'}"
    assert "mark" not in resources


def test_a_check_that_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise OSError("no such disk")

    ours = facts_here()
    monkeypatch.setattr(worker_check, "facts_here", broken)
    assert checked(ours) == ("could not be checked: OSError: no such disk", {"GPU": 1})
