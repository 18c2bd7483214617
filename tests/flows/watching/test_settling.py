"""Looks at texts that somebody may be writing: which of them is the last, and what it comes to."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from permafrost.flows.running import Checked
from permafrost.flows.watching import settling
from permafrost.flows.watching.news import News
from permafrost.flows.watching.settling import Look, settled
from permafrost.storage.errors import InputError

NOTHING = News(nodes=(), told=(), content="old", n_corpora=1, n_waiting=0)
CHANGED = Look(holds="", error=InputError("changed"), is_written=True)


def new(content: str) -> Look:
    """One that finds new texts."""
    news = News(nodes=("a",), told=("1 text new",), content=content, n_corpora=1, n_waiting=0)
    return Look(holds=content, seen=(cast("Checked", None), news))


def broken(size: int, kind: type[InputError] = InputError) -> Look:
    """One that cannot read a file of a size."""
    return Look(holds=(kind, frozenset({("train.jsonl", (size,))})), error=kind("no JSON"))


OLD = Look(holds="old", seen=(cast("Checked", None), NOTHING))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(settling, "sleep", waits.append)
    log: Any = SimpleNamespace(info=lambda *_: None)
    monkeypatch.setattr(settling, "get_run_logger", lambda: log)
    return waits


@pytest.mark.parametrize(
    ("looks", "is_written"),
    [
        pytest.param([OLD], False, id="nothing new"),
        pytest.param([new("a"), new("a")], False, id="new and the same"),
        pytest.param([new("a"), new("b")], True, id="growing"),
        pytest.param([new("a"), OLD], False, id="new, and extracted meanwhile"),
        pytest.param([CHANGED], True, id="changed while it was read"),
        pytest.param([new("a"), CHANGED], True, id="changed while it was read again"),
        pytest.param([broken(1), CHANGED], True, id="broken, then changed while it was read"),
        pytest.param([new("a"), broken(1)], True, id="broken since"),
        pytest.param([broken(1), broken(2)], True, id="broken and growing"),
        pytest.param([broken(1), OLD], False, id="broken, then whole and nothing new"),
        pytest.param([broken(1), new("a"), new("a")], False, id="broken, then whole and the same"),
        pytest.param([broken(1), new("a"), new("b")], True, id="broken, then growing"),
        pytest.param([broken(1), new("a"), broken(2)], True, id="broken, whole, broken"),
    ],
)
def test_only_what_two_looks_agree_on_is_taken(
    looks: list[Look], is_written: bool, slept: list[float]
) -> None:
    left = iter(looks)
    last = settled(lambda: next(left), 10.0)
    assert last.is_written is is_written
    assert last.holds == looks[-1].holds
    assert list(left) == []
    assert slept == [10.0] * (len(looks) - 1)


def test_what_cannot_be_read_twice_and_was_not_written_to_is_an_error(slept: list[float]) -> None:
    looks = iter([broken(1), broken(1)])
    with pytest.raises(InputError, match="no JSON"):
        settled(lambda: next(looks), 10.0)
    assert slept == [10.0]
