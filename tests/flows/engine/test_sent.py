"""A scheduler passes calls on unread."""

import json

import pytest
from distributed import Client

from permafrost.flows.companion import companion
from permafrost.flows.context import RunRuntime
from permafrost.flows.engine.in_worker import threads_of_workers
from permafrost.flows.engine.sent import call, sent
from tests.flows.engine.conftest import cluster_program

IMPORTED = (
    "[name for name in ('torch', 'transformers', 'pydantic') if name in __import__('sys').modules]"
)


def test_a_call_returns_what_its_function_does() -> None:
    assert call(sent(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        call(sent(divmod, 7, 0))


@pytest.mark.deep
def test_a_scheduler_imports_nothing_of_what_its_workers_call() -> None:
    with (
        companion(cluster_program()) as line,
        Client(json.loads(line)["scheduler"], set_as_default=False) as client,
    ):
        future = client.submit(call, sent(threads_of_workers, RunRuntime(threads=3)))
        assert future.result(120) == 3
        assert client.submit(eval, IMPORTED).result(120) == ["torch", "transformers", "pydantic"]
        assert client.run_on_scheduler(eval, IMPORTED) == []
