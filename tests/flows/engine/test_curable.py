"""What fails for a passing reason is tried again, later each time; what is wrong is not."""

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
import torch
from prefect.settings import PREFECT_API_URL, temporary_settings

from permafrost.flows.deployed import flow_run
from permafrost.flows.deployed.flow_run import patiently
from permafrost.flows.engine.curable import DELAYS_S, is_curable
from permafrost.flows.engine.prefect import run_node
from permafrost.storage.errors import (
    CorruptDataError,
    DiskFullError,
    InputError,
    ObjectStoreError,
    OverflowRangeError,
    StoreBusyError,
)


def caused(by: BaseException) -> InputError:
    """As sources tell that a hub could not be asked."""
    try:
        raise InputError("the hub cannot be asked") from by
    except InputError as error:
        return error


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


class OfflineModeIsEnabled(ConnectionError):
    """As of the hub's client."""


@pytest.mark.parametrize(
    ("error", "curable"),
    [
        (StoreBusyError("busy"), True),
        (ObjectStoreError("timed out"), True),
        (OSError(5, "Input/output error"), True),
        (TimeoutError("timed out"), True),
        (torch.OutOfMemoryError("taken"), True),
        (caused(ConnectionError("no route")), True),
        (caused(caused(httpx.ConnectTimeout("slow"))), True),
        (caused(answered(503)), True),
        (caused(answered(404)), False),
        (caused(OfflineModeIsEnabled("offline")), False),
        (httpx.ConnectError("refused"), True),
        (answered(503), True),
        (answered(404), False),
        (InputError("seeds: there is no such field"), False),
        (OverflowRangeError("too large"), False),
        (CorruptDataError("damaged"), False),
        (DiskFullError("full"), False),
        (FileNotFoundError("train.csv"), False),
        (PermissionError("train.csv"), False),
        (ZeroDivisionError("a bug"), False),
        (None, False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: BaseException | None, curable: bool) -> None:
    assert is_curable(error) is curable


def test_stages_wait_longer_each_time() -> None:
    assert run_node.retries == len(DELAYS_S) == 3
    assert run_node.retry_delay_seconds == list(DELAYS_S) == sorted(DELAYS_S)
    may_help: Any = run_node.retry_condition_fn
    for error, curable in ((ObjectStoreError("timed out"), True), (InputError("a typo"), False)):
        state = SimpleNamespace(result=lambda raise_on_failure, error=error: error)
        assert may_help(run_node, None, state) is curable


class Failing:
    """Fails a few times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.n_calls = list(errors), 0

    def __call__(self) -> str:
        self.n_calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a run of a deployment would have waited."""
    waits: list[float] = []
    monkeypatch.setattr(flow_run, "sleep", waits.append)
    monkeypatch.setattr(flow_run, "is_deployed", lambda: True)
    log = SimpleNamespace(warning=lambda *_: None)
    monkeypatch.setattr(flow_run, "get_run_logger", lambda: log)
    return waits


def test_a_deployed_run_reads_its_experiment_again(slept: list[float]) -> None:
    act = Failing(ObjectStoreError("slow"), caused(answered(503)))
    assert patiently(act) == "done"
    assert slept == [2, 10]


def test_it_gives_up_at_last_and_at_once_where_a_person_is_wanted(slept: list[float]) -> None:
    with pytest.raises(ObjectStoreError):
        patiently(Failing(*[ObjectStoreError("gone")] * 9))
    assert slept == list(DELAYS_S)
    wrong = Failing(InputError("a typo"))
    with pytest.raises(InputError):
        patiently(wrong)
    assert wrong.n_calls == 1


def test_whether_a_run_is_deployed_is_known_without_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert patiently(Failing()) == "done"


def test_a_run_of_a_terminal_fails_at_once(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_run, "is_deployed", lambda: False)
    act = Failing(ObjectStoreError("slow"))
    with pytest.raises(ObjectStoreError):
        patiently(act)
    assert act.n_calls == 1
