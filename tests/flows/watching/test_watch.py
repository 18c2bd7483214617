"""The flow that looks for new texts: what it says, and what it starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Failed, State
from rich.console import Console

from permafrost.flows import parts
from permafrost.flows.deployed import flow_run
from permafrost.flows.deployed.started_runs import found_at, start_run
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.parts import downstream, extract
from permafrost.flows.records.runs import unfinished_runs
from permafrost.flows.running import checked, run_backbone_part, run_serially
from permafrost.flows.watching import settling, watch
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.sources.files import FilesCorpus
from tests.flows.watching.test_news import FIRST, NEW, experiment, rows, to_jsonl

Look = Callable[[], str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    to_jsonl(path, rows(0, FIRST))
    return path


@pytest.fixture
def document(data: Path, tiny_bert: Path) -> dict[str, Any]:
    return experiment(tiny_bert, {"kind": "files", "files": {"train": str(data)}})


@pytest.fixture
def name(request: pytest.FixtureRequest, prefect_server: None) -> str:
    """A deployment that nobody works for."""
    name = f"extract-{request.node.name.replace('/', '-')[:60]}"
    with get_client(sync_client=True) as client:
        flow = client.create_flow(extract)
        client.create_deployment(flow_id=flow, name=name)
    return name


@pytest.fixture
def look(document: dict[str, Any], name: str, tmp_path: Path) -> Look:
    """Looks, and returns the message of the run."""

    def message() -> str:
        home = str(tmp_path / "home")
        state = watch(document, home, ["seeds=[0]"], f"extract/{name}", 0, return_state=True)
        state.result()
        return str(state.message)

    return message


def started(name: str) -> list[FlowRun]:
    """Runs of the deployment."""
    only = DeploymentFilter(name=DeploymentFilterName(any_=[name]))
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(deployment_filter=only)


@pytest.mark.deep
def test_what_is_new_is_given_to_one_run_and_nothing_new_to_none(
    look: Look, document: dict[str, Any], data: Path, name: str, tmp_path: Path
) -> None:
    said = look()
    (run,) = started(name)
    assert said.startswith("corpus reviews: new: no earlier corpus")
    assert said.endswith(f"; started extract/{name}: {found_at(run)}")
    home = str(tmp_path / "home")
    given = {"experiment": document, "home": home, "overrides": ["seeds=[0]"]}
    assert run.parameters == given

    again = look()
    assert f"; given to the run {found_at(run)} of extract/{name} before, whose state is " in again
    assert len(started(name)) == 1

    run_backbone_part(checked(document, home, ("seeds=[0]",)), SerialEngine(), Console(quiet=True))
    assert look().startswith("nothing new in 1 corpus, in ")
    to_jsonl(data, rows(FIRST, NEW))
    said = look()
    assert f"train.jsonl: {NEW} texts new; extract " in said
    assert len(started(name)) == 2


@pytest.mark.deep
def test_two_experiments_over_the_same_texts_are_given_a_run_each(
    look: Look, document: dict[str, Any], name: str, tmp_path: Path
) -> None:
    home = str(tmp_path / "home")

    def look_at(experiment: dict[str, Any], overrides: list[str]) -> str:
        state = watch(experiment, home, overrides, f"extract/{name}", 0, return_state=True)
        state.result()
        return str(state.message)

    look()
    for other, overrides in ((document | {"name": "other"}, ["seeds=[0]"]), (document, [])):
        assert f"; started extract/{name}: " in look_at(other, overrides)
        assert "; given to the run " in look_at(other, overrides)
    assert len(started(name)) == 3

    run_backbone_part(checked(document, home, ()), SerialEngine(), Console(quiet=True))
    assert look().endswith(
        "; 3 stages are not done, none of which needs the backbone: downstream or a run of the whole "
        "experiment does them"
    )
    run_serially(document, Path(home), ["seeds=[0]"])
    said = look()
    assert said.startswith("nothing new in 1 corpus, in ")
    assert ";" not in said


@pytest.mark.deep
@pytest.mark.parametrize("settle_s", ["abc", -1, float("nan")])
def test_a_wrong_time_is_refused_in_plain_words(
    document: dict[str, Any], name: str, tmp_path: Path, settle_s: Any
) -> None:
    home = str(tmp_path / "home")
    state = watch(document, home, None, f"extract/{name}", settle_s, return_state=True)
    with pytest.raises(ValueError, match=r"the parameter settle_s is .* give a number of seconds"):
        state.result()


@pytest.mark.deep
def test_what_a_completed_run_made_and_is_gone_is_given_to_one_more_run(
    look: Look, name: str
) -> None:
    def end(run: FlowRun, state: State) -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, state, force=True)

    look()
    (first,) = started(name)
    end(first, Failed())
    assert "whose state is Failed" in look()
    # Nothing is in the home, as if it had been deleted after each of these.
    end(first, Completed())
    said = look()
    (second,) = (run for run in started(name) if run.id != first.id)
    gone = f"; the run {found_at(first)} made this, and it is gone"
    assert said.endswith(f"{gone}; started extract/{name}: {found_at(second)}")
    assert f"; given to the run {found_at(second)} of " in look()
    assert len(started(name)) == 2

    end(second, Completed())
    assert f"the run {found_at(second)} made this, and it is gone" in look()
    assert len(started(name)) == 3

    # Runs that write elsewhere would be started for ever.
    (third,) = (run for run in started(name) if run.id not in (first.id, second.id))
    end(third, Completed())
    told = f"3 runs of extract/{name} have made this, the last one {found_at(third)}, and each time"
    assert told in look()
    assert len(started(name)) == 3


@pytest.mark.deep
def test_what_is_being_written_is_left_for_the_next_look(
    look: Look, data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*written: str) -> None:
        """What is written while a look waits, each time."""
        left = iter(written)

        def write(_: float) -> None:
            with data.open("a") as file:
                file.write(next(left))

        monkeypatch.setattr(settling, "sleep", write)

    first, second = (f"{json.dumps(row)}\n" for row in rows(FIRST, 2))
    wait(first)
    assert look().endswith("; still being written, left for the next look")

    # In the middle of a line, and never the same after it.
    for half, *more in ((second[:10], second[10:], first), (second[:10], second[10:20])):
        with data.open("a") as file:
            file.write(half)
        wait(*more)
        assert look().endswith("; still being written, left for the next look")
    assert started(name) == []
    wait(second[20:], "")
    assert f"; started extract/{name}: " in look()
    assert len(started(name)) == 1


@pytest.mark.deep
def test_a_file_that_grows_while_it_is_read_is_left_for_the_next_look(
    look: Look, data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FilesCorpus.rows

    def grown(self: FilesCorpus) -> list[SplitRows]:
        found = read(self)
        to_jsonl(data, rows(FIRST, NEW))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(FilesCorpus, "rows", grown)
        assert look().endswith("run again; still being written, left for the next look")
    with data.open("a") as file:
        file.write('{"text": ')

    def goes_on(seconds: float) -> None:
        with data.open("a") as file:
            file.write('"grows", "label": 1}\n')
        monkeypatch.setattr(FilesCorpus, "rows", grown)

    monkeypatch.setattr(settling, "sleep", goes_on)
    assert look().endswith("run again; still being written, left for the next look")
    assert started(name) == []


@pytest.mark.deep
def test_a_run_is_found_by_its_address_once_it_has_another_name(look: Look, name: str) -> None:
    said = look()
    (run,) = started(name)
    assert said.endswith(f"; started extract/{name}: {found_at(run)}")
    assert str(run.id) in found_at(run)
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name="watched")
    assert f"; given to the run watched ({found_at(run).split('(')[1]} of extract/{name}" in look()


@pytest.mark.deep
def test_a_run_that_is_asked_for_twice_is_started_once(name: str) -> None:
    first, second = (start_run(f"extract/{name}", {}, "a key") for _ in range(2))
    assert first.id == second.id
    assert len(started(name)) == 1


@pytest.mark.deep
def test_a_start_that_is_not_answered_is_asked_for_again_and_made_once(
    document: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[FlowRun] = []

    def unanswered(*given: Any) -> FlowRun:
        asked.append(start_run(*given))
        if len(asked) == 1:
            raise httpx.ReadError("no answer")
        return asked[-1]

    monkeypatch.setattr(parts, "start_run", unanswered)
    monkeypatch.setattr(flow_run, "is_deployed", lambda: True)
    monkeypatch.setattr(flow_run, "DELAYS_S", (0,))
    home = str(tmp_path / "home")
    extract(document, home, then=f"extract/{name}", return_state=True).result()
    assert len(asked) == 2
    (run,) = started(name)
    assert run.parameters == {"experiment": document, "home": home}
    # Another run of the flow starts another one.
    extract(document, home, then=f"extract/{name}", return_state=True).result()
    assert len(started(name)) == 2


@pytest.mark.deep
def test_a_line_that_stays_broken_and_a_deployment_that_is_not_there_are_told(
    look: Look, document: dict[str, Any], data: Path, name: str, tmp_path: Path
) -> None:
    with data.open("a") as file:
        file.write('{"text": ')
    with pytest.raises(ValueError, match=r"train\.jsonl"):
        look()
    assert started(name) == []
    for run in (
        lambda: watch(document, str(tmp_path / "home"), start="extract/none", return_state=True),
        lambda: extract(document, str(tmp_path / "home"), then="down/none", return_state=True),
    ):
        with pytest.raises(
            ValueError, match=r"there is no deployment '(extract|down)/none' to start"
        ):
            run().result()


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
def test_downstream_runs_nothing_that_needs_the_backbone(
    document: dict[str, Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with pytest.raises(RuntimeError) as refused:
        _raise(downstream(document, str(home), return_state=True))
    assert "'corpus reviews' and 1 more would run here" in str(refused.value)
    assert not list(home.glob("artifacts/*/*"))

    first = extract(document, str(home), return_state=True)
    assert first.message is not None
    assert first.message.startswith("2 computed, 0 reused, 0 failed in ")
    assert sorted(p.name for p in (home / "artifacts").iterdir()) == ["corpus", "extract"]
    second = extract(document, str(home), return_state=True)
    assert second.message is not None
    assert second.message.startswith("nothing new: 0 computed, 2 reused, 0 failed in ")

    # Garbage collection keeps it for the rest.
    (kept,) = unfinished_runs(home)
    assert any(ref.startswith("extract/") for ref in kept.artifacts)
    result = downstream(document, str(home))
    assert result.reused == {"corpus": 1, "extract": 1}
    assert result.computed["report"] == 1
    assert list(unfinished_runs(home)) == []


def _raise(state: Any) -> None:
    try:
        state.result()
    except Exception as error:
        raise RuntimeError(str(error)) from error
