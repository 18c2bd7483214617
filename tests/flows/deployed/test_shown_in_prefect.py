"""What Prefect shows of a run: its name, tags, states, message, logs, report; wrong parameters in a line."""

import base64
import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import TaskRun
from prefect.engine import handle_engine_signals
from prefect.flow_engine import run_flow
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.logging.loggers import flow_run_logger

from permafrost.flows.deployed import shown_in_prefect
from permafrost.flows.deployed.parameters import request
from permafrost.flows.deployed.shown_in_prefect import (
    NAME_CHARS,
    called,
    print_as_before,
    report_markdown,
    run_name,
)
from permafrost.flows.engine import hearing
from permafrost.flows.engine.run_log import scores_text
from permafrost.flows.pipeline import pipeline
from permafrost.flows.quiet import EMBEDDED_DEFAULTS, TOLD_TO_PREFECT, set_quiet_defaults
from permafrost.storage.errors import InputError

LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
DEADLINE_S = 120
T = TypeVar("T")
REPORT = re.compile("the report is (.*)")


class Heard(logging.Handler):
    """What was logged of runs, at INFO and above."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).removeHandler(handler)


def deployed(**parameters: Any) -> UUID:
    """A run that somebody asked for by parameters alone, as of a deployment."""
    with get_client(sync_client=True) as client:
        return client.create_flow_run(pipeline, parameters=parameters).id


def execute(run: UUID) -> None:
    """Run it as the process does that a worker starts."""
    with get_client(sync_client=True) as client, handle_engine_signals(run):
        found = client.read_flow_run(run)
        run_flow(pipeline, flow_run=found, error_logger=cast(Any, flow_run_logger(found)))


def until(found: Callable[[], list[T] | None]) -> list[T]:
    """The server records after a while."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.deep
def test_a_run_is_shown_with_names_tags_states_counts_logs_and_its_report(
    experiment_file: Path, finished_home: Path, tmp_path: Path, heard: Heard
) -> None:
    home = shutil.copytree(finished_home, tmp_path / "home")
    changes = ["methods.mean.optim.lr=0.02", "name=shown"]
    run = deployed(experiment=str(experiment_file), home=str(home), overrides=changes)
    execute(run)
    this = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    of_this = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    with get_client(sync_client=True) as client:

        def stages() -> list[TaskRun] | None:
            ended = [
                t
                for t in client.read_task_runs(flow_run_filter=this)
                if t.state is not None and t.state.is_final()
            ]
            return ended if len(ended) == 41 else None

        def lines() -> list[str] | None:
            said = [log.message for log in client.read_logs(of_this, limit=200)]
            n_scores = sum(" on test" in line for line in said)
            return said if n_scores == 16 and any(map(REPORT.match, said)) else None

        found = client.read_flow_run(run)
        tasks, logs = until(stages), until(lines)
        (artifact,) = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
        )
    assert found.name == "shown · methods.mean.optim.lr=0.02"
    assert found.tags == ["experiment:shown"]
    assert found.state is not None
    assert re.fullmatch(r"9 computed, 32 reused, 0 failed in \d+ s", found.state.message or "")
    assert Counter(t.state_name for t in tasks) == {"Cached": 32, "Completed": 9}
    for task in tasks:
        assert set(task.tags) == {"experiment:shown", f"stage:{task.name.split()[0]}"}
    computed = "score mean · ratio 0.2 · seed 0"
    (line,) = [line for line in logs if line.startswith(computed)]
    assert re.fullmatch(rf"{computed}: accuracy [\d.]+ on test, [\d.]+ on dev; [\d.]+ s", line)
    reused = [line for line in logs if line.startswith("score GLOT") and line.endswith("reused")]
    assert len(reused) == 4
    (control,) = [line for line in logs if line.startswith("control words · ratio 0.5")]
    assert re.search(r": accuracy [\d.]+ on test, .*; reused$", control)
    (folder,) = [Path(m[1]).parent for line in logs if (m := REPORT.fullmatch(line))]
    table = (folder / "results.md").read_text().partition("\n\n")[0]
    assert table.startswith("| method")
    assert table in logs
    assert artifact.key == "shown-report"
    assert artifact.type == "markdown"
    shown = str(artifact.data)
    assert " on average over 2 tasks, with accuracy " in shown.partition("\n")[0]
    for name in ("results.md", "tables.md"):
        assert (folder / name).read_text().strip() in shown
    picture = base64.b64encode((folder / "figures" / "metric.png").read_bytes()).decode()
    assert f"![metric](data:image/png;base64,{picture})" in shown
    assert "file://" not in shown
    assert str(folder / "report.html") in shown.replace("\\", "")


@pytest.mark.few(1)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"experiment": "no/such.yaml"}, r"no/such\.yaml"),
        (
            {"overrides": "seeds=[0]"},
            r"the parameter overrides is 'seeds=\[0\]', of type str; give a list of texts",
        ),
        ({"sets": []}, r"expects parameters .* but was provided with parameters .*'sets'"),
        ({"overrides": ["seed=[0]"]}, "seed: there is no such field; the nearest is 'seeds'"),
    ],
)
def test_a_wrong_parameter_of_a_deployment_is_told_in_one_line(
    experiment_file: Path, tmp_path: Path, heard: Heard, wrong: dict[str, Any], message: str
) -> None:
    run = deployed(**{"experiment": str(experiment_file), "home": str(tmp_path / "home"), **wrong})
    with pytest.raises(SystemExit):
        execute(run)
    (record,) = [r for r in heard.records if not r.getMessage().startswith(("Beginning", "View"))]
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    line = record.getMessage()
    assert re.search(message, line)
    assert "\n" not in line
    if "sets" in wrong:
        return  # its worker says that it crashed
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(run)
    state = found.state
    assert state is not None
    assert state.is_failed()
    if wrong.get("overrides") == ["seed=[0]"]:
        assert found.name == "tiny · seed=[0]", "whose it is can be seen before it is read"
    assert re.search(message, state.message or ""), "the page of the run has it as well"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("experiment", 3),
        ("home", None),
        ("overrides", [1]),
        ("engine", ["dask"]),
        ("runtime", "fast"),
    ],
)
def test_a_parameter_of_another_type_is_named_with_its_value(name: str, value: object) -> None:
    right = {"experiment": "a.yaml", "home": "h", "overrides": None, "engine": None}
    request(**right)
    request(**{**right, "experiment": {}, "overrides": ["a=1"], "engine": "dask"})
    with pytest.raises(InputError, match=re.escape(f"the parameter {name} is {value!r}, of type ")):
        request(**{**right, name: value})


def test_a_bug_keeps_its_traceback(
    experiment_file: Path,
    tmp_path: Path,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
    prefect_server: None,
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("permafrost.flows.pipeline.checked", fails)
    with pytest.raises(SystemExit):
        execute(deployed(experiment=str(experiment_file), home=str(tmp_path / "home")))
    tracebacks = [r.exc_info[0] for r in heard.records if r.exc_info]
    assert ZeroDivisionError in tracebacks


def test_a_run_is_named_by_its_experiment_and_overrides() -> None:
    changes = ["seeds=[0]", "methods.GLOT.optim.lr=0.002"]
    assert run_name("demo", []) == "demo"
    assert run_name("demo", changes) == "demo · seeds=[0], methods.GLOT.optim.lr=0.002"
    assert run_name("other", ["name=other", changes[0]]) == "other · seeds=[0]"
    assert run_name("demo", ["a=x\ny"]) == r"demo · a=x\ny"
    assert called("experiments/demo.yaml") == called({"name": "demo"}) == "demo"


def test_a_long_name_is_cut_at_a_word() -> None:
    changes = [f"methods.m{i}.optim.lr=0.0{i}" for i in range(9)]
    name = run_name("demo", changes)
    assert len(name) <= NAME_CHARS
    assert name == f"demo · {', '.join(changes[:3])} …"
    alone = run_name("demo", ["report.title=" + "x" * 200])
    assert alone == f"demo · report.title={'x' * 200}"[: NAME_CHARS - 1] + "…"


def a_report(folder: Path, *pictures: tuple[str, int]) -> Path:
    (folder / "figures").mkdir(parents=True)
    for name, size in pictures:
        (folder / "figures" / f"{name}.png").write_bytes(b"\x89" * size)
    (folder / "results.md").write_text("| method | t |\n| :--- | ---: |\n| a | 1 |\n\na note\n")
    tables = "## One, × 100\n\n| x |\n| --- |\n| 1 |\n\n## Two\n\n| y |\n| --- |\n| 2 |\n"
    (folder / "tables.md").write_text(tables)
    return folder / "report.html"


def test_the_report_as_an_artifact_begins_with_the_result(tmp_path: Path) -> None:
    shown = report_markdown(a_report(tmp_path / "r", ("layers", 30), ("metric", 30)), "a *won*.")
    order = [r"a \*won\*.", "| method", "a note", "![metric]", "![layers]", "## One", "## Two"]
    places = [shown.index(text) for text in order]
    assert places == sorted(places)
    assert shown.endswith("report.html\n")
    assert "Left out" not in shown


def test_what_is_too_large_for_an_artifact_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_in_prefect, "MOST_BYTES", 1_000_000)
    report = a_report(tmp_path / "r", ("map_1", 900_000), ("map_2", 500_000), ("metric", 400_000))
    (report.parent / "tables.md").write_text(
        "## Small\n\n| x |\n\n## Large\n\n| " + "y" * 500_000 + " |\n"
    )
    shown = report_markdown(report, "a won.")
    assert len(shown.encode()) <= 1_000_000 + 200
    assert "![metric](" in shown
    assert "## Small" in shown
    left_out = "the figure map 1, the figure map 2, the table Large."
    assert f"Left out here, as this would be larger than 1 MB: {left_out}" in shown


def test_scores_are_told_of_nodes_that_have_some() -> None:
    summary = {"metric": "accuracy", "dev": 0.881, "test": 0.8734, "method": "m"}
    assert scores_text(summary) == "accuracy 87.3 on test, 88.1 on dev"
    assert scores_text({**summary, "dev": None}) == "accuracy 87.3 on test"
    assert scores_text({"fit": "x", "dev": 0.5}) == ""
    assert scores_text({}) == ""


def test_a_command_tells_the_server_what_it_does_not_print(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*EMBEDDED_DEFAULTS, *TOLD_TO_PREFECT):
        monkeypatch.delenv(name, raising=False)
        # So that what is set here is taken back.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    set_quiet_defaults()
    assert {os.environ[name] for name in TOLD_TO_PREFECT} == {"INFO"}
    assert os.environ["PREFECT_LOGGING_LEVEL"] == "ERROR"
    for name in TOLD_TO_PREFECT:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    set_quiet_defaults()
    assert not TOLD_TO_PREFECT.keys() & os.environ.keys(), "the user's level counts"


def record(name: str, level: int) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, "said", (), None)


def test_what_only_the_server_is_told_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    handler = PrefectConsoleHandler()
    caplog.set_level(logging.ERROR, "prefect")
    logging.getLogger().addHandler(handler)
    try:
        print_as_before()
    finally:
        logging.getLogger().removeHandler(handler)
    for name in LOGGERS[:2]:
        assert not handler.filter(record(name, logging.INFO))
        assert handler.filter(record(name, logging.ERROR))
    assert handler.filter(record("a.library", logging.WARNING)), "others are printed as before"


@pytest.mark.parametrize(("level", "printed"), [(logging.ERROR, 1), (logging.INFO, 0)])
def test_a_warning_of_a_worker_is_told_and_printed_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, level: int, printed: int
) -> None:
    run, told = logging.getLogger("a run of this test"), Heard()
    run.setLevel(logging.INFO)
    monkeypatch.setattr(run, "handlers", [told])
    monkeypatch.setattr(hearing, "get_run_logger", lambda: run)
    caplog.set_level(level, "prefect")
    caplog.handler.setLevel(logging.NOTSET)
    hearing.log(logging.WARNING, "a.library", "too long")
    assert [r.getMessage() for r in told.records] == ["a.library: too long"]
    assert sum(r.name == "a.library" for r in caplog.records) == printed
