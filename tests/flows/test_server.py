"""The server of our own: each run of a process talks to its own one."""

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from prefect.states import Completed, Running

from permafrost.flows import pipeline, server
from permafrost.flows.companion import Program


def test_a_later_run_does_not_report_to_the_server_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.contextmanager
    def no_server(settings: object) -> Iterator[str]:
        yield "http://127.0.0.1:1/api"

    monkeypatch.setattr(server, "_server", no_server)
    unset = temporary_settings(
        {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}, restore_defaults={PREFECT_API_URL}
    )
    with unset:
        with server.prefect_api():
            assert PREFECT_API_URL.value() == "http://127.0.0.1:1/api"
            sender = EventsWorker.instance(NullEventsClient)
            assert EventsWorker.instance(NullEventsClient) is sender
        with server.prefect_api():
            assert EventsWorker.instance(NullEventsClient) is not sender


def test_a_server_of_ours_records_many_stages_at_a_time_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Mapping[str, str]] = []

    @contextlib.contextmanager
    def not_started(program: Program) -> Iterator[str]:
        started.append(program.environment)
        yield "http://127.0.0.1:1/api"

    monkeypatch.setattr(server, "companion", not_started)
    name = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"
    for settings, size in (({}, 100), ({name: "7"}, 7)):
        with server._server(settings):
            assert int(started[-1][name]) == size


def test_records_are_waited_for_until_all_stages_are_there_and_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, under_way = (SimpleNamespace(state=state()) for state in (Completed, Running))
    answers = [[], [over], [over, under_way], [over, over], [over, over, over]]

    class Client:
        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *error: object) -> None: ...

        def read_task_runs(self, **asked: object) -> list[SimpleNamespace]:
            return answers.pop(0)

    monkeypatch.setattr(pipeline, "get_client", lambda sync_client: Client())
    pipeline._wait_for_records(uuid4(), 2)
    assert answers == [[over, over, over]]
