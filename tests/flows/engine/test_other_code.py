"""A worker that has other code of a plug-in's modules than the process that asks computes nothing."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import in_worker
from permafrost.flows.engine.in_worker import Line, UnlikeWorkerError, compute
from tests.flows.engine.waiting import waiting

CODE = {"permafrost.stages.kinds:any": "0" * 16}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """To nobody."""
    worker = SimpleNamespace(
        address="tcp://here",
        name="mine",
        log_event=lambda *_: None,
        state=SimpleNamespace(tasks={}),
    )
    monkeypatch.setattr(in_worker, "get_worker", lambda: worker)
    monkeypatch.setattr(Line, "require_asked_for", lambda _: None)
    return Line("topic", "task", "check", "its own")


def test_a_node_whose_code_is_another_here_is_not_computed(tmp_path: Path, line: Line) -> None:
    (tmp_path / "first.json").write_text("1")  # so that it does not wait
    node = waiting("lamp").model_copy(update={"code": CODE | {"helpers_of_mine.words:f": "1" * 16}})
    with pytest.raises(UnlikeWorkerError) as error:
        compute(node, str(tmp_path), RunRuntime(), line)
    assert error.value.address == "tcp://here"
    assert error.value.problem == "has another helpers_of_mine.words:f than this process, or none"
    context = RunContext(tmp_path, RunRuntime())
    assert not context.artifacts.is_done(node.ref)


def test_our_own_code_is_compared_by_another_check(tmp_path: Path, line: Line) -> None:
    (tmp_path / "first.json").write_text("1")
    node = waiting("lamp").model_copy(update={"code": CODE})
    compute(node, str(tmp_path), RunRuntime(), line)
    assert RunContext(tmp_path, RunRuntime()).artifacts.is_done(node.ref)
