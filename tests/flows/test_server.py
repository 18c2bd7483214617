"""The server of our own: each run of a process talks to its own one."""

import contextlib
from collections.abc import Iterator

import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)

from permafrost.flows import server


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
