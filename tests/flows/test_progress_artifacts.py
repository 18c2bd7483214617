"""Progress artifacts are sent beside the work: a server that does not answer holds up nobody."""

import threading
import time
from collections.abc import Iterator
from uuid import UUID, uuid4

import prefect.artifacts
import prefect.context
import pytest

from permafrost.flows.engine.progress import LAST_S, ProgressArtifacts, rate_text

pytestmark = pytest.mark.timeout(60)  # a stage that is held up waits for ever


class Server:
    """In place of Prefect's: answers once it is let go."""

    def __init__(self) -> None:
        self.answers, self.asked = threading.Event(), threading.Event()
        self.seen: list[tuple[str, float]] = []

    def answer_all(self) -> None:
        """Let it go, and wait until nothing is left to be sent: a stage does not wait that long."""
        self.answers.set()
        for thread in threading.enumerate():
            if thread.name == "permafrost-progress":
                thread.join()

    def create(self, progress: float, description: str) -> UUID:
        self.asked.set()
        self.answers.wait()
        self.seen.append((description, progress))
        return uuid4()

    def update(self, artifact: UUID, progress: float) -> None:
        self.answers.wait()
        self.seen.append((f"update of {type(artifact).__name__}", progress))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", server.create)
    monkeypatch.setattr(prefect.artifacts, "update_progress_artifact", server.update)
    monkeypatch.setattr(prefect.context.TaskRunContext, "get", lambda: object())
    yield server
    # While the patches hold: a sender that lives on would call those of the next test.
    server.answer_all()


def test_a_server_that_never_answers_holds_up_no_stage(server: Server) -> None:
    started = time.monotonic()
    with ProgressArtifacts() as artifacts:
        for percent in range(1000):
            artifacts.show("a", "fit", percent)
    assert time.monotonic() - started < LAST_S + 5
    assert server.seen == []


def test_a_description_is_literal_where_prefect_reads_markdown(server: Server) -> None:
    server.answers.set()
    with ProgressArtifacts() as artifacts:
        artifacts.show("a", "fit GLOT [k=2] · *x* <b>", 1.0)
    server.answer_all()
    assert server.seen == [(r"fit GLOT \[k=2\] · \*x\* \<b>", 1.0)]


def test_only_the_latest_figure_waits(server: Server) -> None:
    with ProgressArtifacts() as artifacts:
        artifacts.show("a", "fit", 1.0)
        server.asked.wait()
        for percent in (2.0, 3.0, 4.0):
            artifacts.show("a", "fit", percent)
        server.answers.set()
    server.answer_all()
    assert server.seen == [("fit", 1.0), ("update of UUID", 4.0)]


def test_what_the_server_refuses_fails_no_stage(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_fits(progress: float, description: str) -> UUID:
        if description == "fit":
            raise ConnectionError("the server has gone")
        return server.create(progress, description)

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse_fits)
    server.answers.set()
    with ProgressArtifacts() as artifacts:
        for number in range(5):
            artifacts.show(number, "fit" if number != 2 else "score", float(number))
    server.answer_all()
    assert server.seen == [("score", 2.0)]


def test_slow_and_fast_rates_have_digits_that_say_something() -> None:
    assert rate_text(6140, "tokens") == "6.1k tokens/s"
    assert rate_text(0.4, "steps") == "0.4 steps/s"
    assert rate_text(0.05, "steps") == "3.0 steps/min"
