"""What may run next: when its needs are met, when nobody is in its way, and never after a failure."""

from permafrost.flows.engine.schedule import Schedule
from permafrost.flows.graph import Graph, Node
from tests.flows.engine.sums import total


def planned(graph: Graph) -> Schedule:
    """Where nothing wants the machine for itself."""
    return Schedule(graph, lambda *_: False)


def drain(schedule: Schedule) -> list[str]:
    """Labels of everything that could be started now, and is."""
    labels: list[str] = []
    while (node := schedule.next()) is not None:
        schedule.start(node)
        labels.append(node.label)
    return labels


def test_a_node_is_ready_when_all_that_it_needs_has_ended() -> None:
    a, b = total("a", 1), total("b", 2)
    c = total("c", 3, a, after=(b,))
    schedule = planned(Graph([c, a, b]))
    assert drain(schedule) == ["a", "b"]
    schedule.end(a, "computed")
    assert drain(schedule) == []
    schedule.end(b, "reused")
    assert drain(schedule) == ["c"]
    assert not schedule.finished
    schedule.end(c, "computed")
    assert schedule.finished


def test_a_store_has_one_writer() -> None:
    a, b = total("a", 1, stores=("s",)), total("b", 2, stores=("s", "t"))
    c = total("c", 3, stores=("u",))
    schedule = planned(Graph([a, b, c]))
    assert drain(schedule) == ["a", "c"]
    schedule.end(a, "computed")
    assert drain(schedule) == ["b"]


def test_a_failure_skips_what_needs_it_and_nothing_else() -> None:
    bad, good = total("bad", -1), total("good", 1)
    below = total("below", 2, bad)
    deep = total("deep", 3, below, good)
    other = total("other", 4, good)
    schedule = planned(Graph([bad, good, below, deep, other]))
    assert drain(schedule) == ["bad", "good"]
    error = ValueError("no")
    ended = schedule.end(bad, "failed", error)
    assert [(o.node.label, o.state, _label(o.because)) for o in ended] == [
        ("bad", "failed", None),
        ("below", "skipped", "bad"),
        ("deep", "skipped", "bad"),
    ]
    assert ended[0].error is error
    schedule.end(good, "computed")
    assert drain(schedule) == ["other"]
    schedule.end(other, "computed")
    assert schedule.finished
    assert {o.node.label: o.state for o in schedule.outcomes.values()} == {
        "bad": "failed",
        "below": "skipped",
        "deep": "skipped",
        "good": "computed",
        "other": "computed",
    }


def _label(node: Node | None) -> str | None:
    return None if node is None else node.label


def test_what_wants_the_machine_runs_alone_and_comes_first() -> None:
    first, second = total("first", 1), total("second", 2)
    fit, other = total("fit", 3, first), total("other", 4)
    schedule = Schedule(
        Graph([first, second, fit, other]), lambda *pair: first in pair or second in pair
    )
    assert drain(schedule) == ["first"]
    schedule.end(first, "computed")
    assert drain(schedule) == ["second"], (
        "fits wait, as they would only share the processors with it"
    )
    schedule.end(second, "computed")
    assert drain(schedule) == ["fit", "other"]
