"""The server of our own: each run of a process talks to its own one."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from prefect.states import Completed, Running
from sqlalchemy.pool import QueuePool

from permafrost.flows import pipeline
from permafrost.flows.companion import Program
from permafrost.flows.server import api, process
from permafrost.storage.errors import InputError
from tests.ports import free_port


def test_a_later_run_does_not_report_to_the_server_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.contextmanager
    def no_server(settings: object) -> Iterator[str]:
        yield "http://127.0.0.1:1/api"

    monkeypatch.setattr(api, "_server", no_server)
    unset = temporary_settings(
        {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}, restore_defaults={PREFECT_API_URL}
    )
    with unset:
        with api.prefect_api():
            assert PREFECT_API_URL.value() == "http://127.0.0.1:1/api"
            sender = EventsWorker.instance(NullEventsClient)
            assert EventsWorker.instance(NullEventsClient) is sender
        with api.prefect_api():
            assert EventsWorker.instance(NullEventsClient) is not sender


def test_a_server_of_ours_records_many_stages_at_a_time_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Mapping[str, str]] = []

    @contextlib.contextmanager
    def not_started(program: Program) -> Iterator[str]:
        started.append(program.environment)
        yield "http://127.0.0.1:1/api"

    monkeypatch.setattr(api, "companion", not_started)
    name = "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"
    for settings, size in (({}, 100), ({name: "7"}, 7)):
        with api._server(settings):
            assert int(started[-1][name]) == size


class Cancelled:
    """A connection to a database whose user has gone in the middle of a request."""

    def rollback(self) -> None:
        raise asyncio.CancelledError

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("level", "n"), [("CRITICAL", 0), ("WARNING", 1)])
def test_a_cancelled_request_is_told_of_as_the_servers_log_is_set(
    level: str, n: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_LOGGING_LEVEL", level)
    logger = logging.getLogger("sqlalchemy.pool")
    before = logger.level
    try:
        process.quieten_database()
        connection = QueuePool(Cancelled).connect()
        with pytest.raises(asyncio.CancelledError):
            connection.close()
    finally:
        logger.setLevel(before)
    assert len(caplog.records) == n


@pytest.mark.parametrize(
    ("in_environment", "advice"),
    [(True, "or unset PREFECT_API_URL"), (False, "'prefect config unset PREFECT_API_URL'")],
)
def test_a_server_that_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, in_environment: bool, advice: str
) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    if in_environment:
        monkeypatch.setenv("PREFECT_API_URL", url)
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(InputError, match=f"no Prefect server answers at '{url}'") as refusal,
        api.prefect_api(),
    ):
        pass
    assert advice in str(refusal.value)


def test_no_server_where_none_may_be_started_is_refused() -> None:
    none = temporary_settings(
        {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}, restore_defaults={PREFECT_API_URL}
    )
    refusal = pytest.raises(InputError, match="set PREFECT_API_URL to a server that is running")
    with none, refusal, api.prefect_api():
        pass


def test_prefect_has_a_temporary_folder_where_it_cannot_write_to_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes: list[str] = []

    @contextlib.contextmanager
    def not_started(settings: Mapping[str, str]) -> Iterator[str]:
        homes.append(settings["PREFECT_HOME"])
        yield "http://127.0.0.1:1/api"

    monkeypatch.setattr(api, "_server", not_started)
    for folder in (tmp_path, Path("/proc/nowhere")):
        settings = {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True, PREFECT_HOME: folder}
        with (
            temporary_settings(settings, restore_defaults={PREFECT_API_URL}),
            api.prefect_api(),
        ):
            assert PREFECT_HOME.value() == Path(homes[-1])
            assert Path(homes[-1]).is_dir()
    assert homes[0] == str(tmp_path)
    assert not Path(homes[1]).exists()
    said = capsys.readouterr().err
    assert said.count("set PREFECT_HOME to a folder") == 1
    assert "cannot write to its folder /proc/nowhere" in said


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
