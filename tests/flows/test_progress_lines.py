"""Lines of progress where there is no terminal: a time left is told once there is a rate."""

import io

import pytest
from rich.console import Console

from permafrost.flows.engine import progress as module
from permafrost.flows.engine.progress import Display, NodeProgress, duration_text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def lines(clock: Clock, *advances: tuple[float, int]) -> list[str]:
    """What is printed of 10,000 tokens when after so many seconds so many more are done."""
    said = io.StringIO()
    node = NodeProgress(Display(Console(file=said, width=200)), "extract")
    node.start("extract", 10_000, "tokens")
    for seconds, amount in advances:
        clock.now += seconds
        node.advance(amount)
    return [line.strip() for line in said.getvalue().splitlines()]


def test_there_is_no_time_left_before_there_is_a_rate(clock: Clock) -> None:
    assert lines(clock, (11, 0), (11, 0)) == ["extract: 0%", "extract: 0%"]
    # A minute in which the model was loaded is in no rate.
    assert lines(clock, (60, 100)) == ["extract: 1%"]


def test_it_is_counted_from_the_first_advance(clock: Clock) -> None:
    first, second = lines(clock, (60, 100), (20, 2_000))
    assert first == "extract: 1%"
    assert second == "extract: 21% (100.0 tokens/s, 79 s left)"


def test_work_that_was_found_done_is_in_no_rate(clock: Clock) -> None:
    assert lines(clock, (1, 9_000), (20, 20))[-1] == "extract: 90% (1.0 tokens/s, 16 min left)"


def test_what_is_waited_for_is_said_at_once_and_then_now_and_again(clock: Clock) -> None:
    said = io.StringIO()
    node = NodeProgress(Display(Console(file=said, width=200)), "extract a")
    node.start("wait", 0, "")
    for _ in range(12):
        node.advance(0, "waiting for process 7")
        clock.now += 1
    assert said.getvalue().splitlines() == ["  extract a: waiting for process 7"] * 2


def test_durations_are_for_people() -> None:
    assert list(map(duration_text, (-1, 99, 307_662 / 60, 307_662))) == [
        "0 s",
        "99 s",
        "85 min",
        "85.5 h",
    ]
