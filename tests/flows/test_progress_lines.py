"""Lines of progress where there is no terminal: a time left is told once there is a rate."""

from collections.abc import Callable, Iterator

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


Lines = Callable[..., list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """What has been printed where errors go; nothing is where another program reads the results."""

    def read() -> list[str]:
        out, err = capsys.readouterr()
        assert not out
        return [line.strip() for line in err.splitlines()]

    yield read
    assert not read(), "a test reads all"


@pytest.fixture
def lines(clock: Clock, printed: Callable[[], list[str]]) -> Lines:
    """What is printed of 10,000 tokens when after so many seconds so many more are done."""

    def said(*advances: tuple[float, int]) -> list[str]:
        node = NodeProgress(Display(Console(width=200)), "extract")
        node.start("extract", 10_000, "tokens")
        for seconds, amount in advances:
            clock.now += seconds
            node.advance(amount)
        return printed()

    return said


def test_there_is_no_time_left_before_there_is_a_rate(lines: Lines) -> None:
    assert lines((11, 0), (11, 0)) == ["extract: 0%", "extract: 0%"]
    # A minute in which the model was loaded is in no rate.
    assert lines((60, 100)) == ["extract: 1%"]


def test_it_is_counted_from_the_first_advance(lines: Lines) -> None:
    first, second = lines((60, 100), (20, 2_000))
    assert first == "extract: 1%"
    assert second == "extract: 21% (100.0 tokens/s, 79 s left)"


def test_work_that_was_found_done_is_in_no_rate(lines: Lines) -> None:
    assert lines((1, 9_000), (20, 20))[-1] == "extract: 90% (1.0 tokens/s, 16 min left)"


def test_what_is_waited_for_is_said_at_once_and_then_now_and_again(
    clock: Clock, printed: Callable[[], list[str]]
) -> None:
    node = NodeProgress(Display(Console(width=200)), "extract a")
    node.start("wait", 0, "")
    for _ in range(12):
        node.advance(0, "waiting for process 7")
        clock.now += 1
    assert printed() == ["extract a: waiting for process 7"] * 2


def test_durations_are_for_people() -> None:
    assert list(map(duration_text, (-1, 99, 307_662 / 60, 307_662))) == [
        "0 s",
        "99 s",
        "85 min",
        "85.5 h",
    ]
