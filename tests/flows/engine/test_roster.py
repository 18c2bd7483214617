"""What is said of a run's workers as they come, differ, need memory and are lost."""

import pytest

from permafrost.flows.engine import roster
from permafrost.flows.engine.prefect import ClusterGoneError
from permafrost.flows.engine.roster import Roster

A, B = "tcp://a:1", "tcp://b:1"
TWO_GB = 2_000_000_000


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def workers(said: list[str]) -> Roster:
    return Roster(lambda text, style: said.append(text))


def check(
    workers: Roster,
    address: str,
    problem: str = "",
    name: str = "",
    status: str = "running",
    resources: tuple[str, ...] = ("GPU",),
) -> None:
    workers.checked(
        {
            "address": address,
            "name": name or address,
            "host": "box",
            "limit": TWO_GB,
            "resources": list(resources),
            "status": status,
            "problem": problem,
        }
    )


def ask(workers: Roster, labels: dict[str, str]) -> None:
    for task, label in labels.items():
        workers.asked(task, label)


def test_a_refused_worker_is_named_with_what_differs_and_what_to_do(
    workers: Roster, said: list[str]
) -> None:
    check(workers, A, "has torch 2.1 where this process has 2.13.0", name="gpu0")
    check(workers, A, "has torch 2.1 where this process has 2.13.0", name="gpu0")
    assert said == [
        "refused the Dask worker gpu0 (tcp://a:1) on box: it has torch 2.1 where this process has 2.13.0. "
        "It gets nothing of this run; start it in the same environment, with the same files"
    ]
    with pytest.raises(ClusterGoneError, match=r"gpu0 \(tcp://a:1\) has torch 2\.1 where"):
        workers.require(None)


def test_a_lost_worker_is_named_with_what_it_computed_and_not_with_what_it_was_to(
    workers: Roster, said: list[str]
) -> None:
    check(workers, A, name="0")
    ask(workers, {"t1": "fit a", "t2": "fit b", "t3": "fit c"})
    workers.told("t2", A, 1)
    workers.removed(A)
    assert [workers.n_lost_with(task) for task in ("t1", "t2", "t3")] == [0, 1, 0]
    assert said == ["lost the Dask worker tcp://a:1 while it had 'fit b', which goes to another"]
    assert workers.n_lost == 1


def test_a_node_that_has_ended_is_not_lost_with_its_worker(
    workers: Roster, said: list[str]
) -> None:
    check(workers, A)
    ask(workers, {"t1": "fit a"})
    workers.told("t1", A, 1)
    workers.ended("t1")
    workers.removed(A)
    assert workers.n_lost_with("t1") == 0
    assert said == ["lost the Dask worker tcp://a:1"]


def test_a_run_without_a_worker_waits_and_says_so_once(
    workers: Roster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "MISSED_S", -1.0)
    check(workers, A)
    check(workers, B, "has torch 2.1 where this process has 2.13.0")
    assert workers.require("tcp://s:1")
    workers.removed(A)
    del said[:]
    for _ in range(3):
        assert not workers.require("tcp://s:1")
    assert said == ["no Dask worker is left that can be used; waiting for one to join tcp://s:1"], (
        "the one that differs does not count, and another may come"
    )
    check(workers, A)
    assert workers.require("tcp://s:1")


def test_a_resource_that_a_lost_worker_had_is_waited_for(
    workers: Roster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are not given the backbone; what other runs have set at a worker is none of ours."""
    monkeypatch.setattr(roster, "MISSED_S", -1.0)
    check(workers, B, resources=("permafrost-of-this-run",))
    check(workers, "tcp://c:1", resources=("permafrost-of-another",))
    workers.removed("tcp://c:1")
    assert not workers.has_gpus
    del said[:]
    workers.require("tcp://s:1")
    assert said == []
    check(workers, A)
    assert workers.has_gpus
    workers.removed(A)
    assert workers.has_gpus
    del said[:]
    for _ in range(3):
        assert workers.require("tcp://s:1")
    wanted = (
        "no Dask worker with the resource GPU is left; the backbone waits for one to join tcp://s:1"
    )
    assert said == [wanted]
    check(workers, A)
    workers.require("tcp://s:1")
    workers.removed(A)
    for _ in range(3):
        workers.require("tcp://s:1")
    assert said[1:] == ["lost the Dask worker tcp://a:1", wanted]


def test_a_worker_with_other_files_ends_a_run_only_if_there_was_no_other(workers: Roster) -> None:
    check(workers, A)
    check(workers, B)
    workers.refuse(A, "has another model.safetensors")
    workers.removed(B)
    assert not workers.require(None)
    check(workers, B)
    workers.refuse(B, "has another model.safetensors")
    with pytest.raises(ClusterGoneError, match="another model"):
        workers.require(None)


@pytest.mark.parametrize("order", ["told before it is lost", "told after it is lost"])
def test_memory_that_a_lost_worker_held_is_told_and_reported(
    workers: Roster, said: list[str], order: str
) -> None:
    check(workers, A)
    check(workers, B)
    ask(workers, {"t1": "fit a"})
    workers.told("t1", A, 1_200_000_000)
    ended = {"worker": A, "pid": 7, "rss": 1_950_000_000}
    if "before" in order:
        workers.over_memory(ended)
    workers.removed(A)
    if "after" in order:
        workers.over_memory(ended)
    held = "1.95 GB of the 2.00 GB that it may hold"
    assert f"the Dask worker {A} holds {held}: Dask ends it" in said
    assert workers.too_much("t1") == held
    assert workers.too_much("t2") == ""
    assert workers.needed({B: 700_000_000}) == (
        "memory of 1 Dask workers at its peak: 0.70 of at most 2.0 GB each; of 1 that were lost, as far as "
        "they told: 1.95"
    )


PAUSED = (
    f"Dask has paused the worker {A}, which holds too much of the 2.00 GB that it may hold: it begins "
    "nothing more until it holds less. Should that last, set runtime.worker_memory_bytes to more "
    "(--memory-limit of 'dask worker')"
)


def test_a_paused_worker_is_named_once(
    workers: Roster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "PAUSED_S", -1.0)
    check(workers, A)
    check(workers, B)
    assert workers.require(None)
    assert said == []
    for status in ("paused", "running", "paused"):
        workers.changed(A, status)
        for _ in range(2):
            assert workers.require(None)
    assert said == [PAUSED]


def test_a_worker_that_was_paused_before_the_run_is_named(
    workers: Roster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(workers, A, status="paused")
    assert workers.require(None)
    assert said == [], "it may be for a moment"
    monkeypatch.setattr(roster, "PAUSED_S", -1.0)
    assert workers.require(None)
    assert said == [PAUSED]


def test_a_worker_that_goes_on_at_once_is_not_named(
    workers: Roster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(workers, A)
    workers.changed(A, "paused")
    workers.changed(A, "running")
    monkeypatch.setattr(roster, "PAUSED_S", -1.0)
    assert workers.require(None)
    assert said == []
