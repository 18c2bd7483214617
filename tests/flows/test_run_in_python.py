"""`permafrost.run`, `plan` and `register`: a script or a notebook runs what a file does."""

import asyncio
import atexit
import gc
import importlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import permafrost
from permafrost.flows import front
from permafrost.flows.stopping import STOP, Stopped
from permafrost.stages import plugins
from permafrost.stages.heads import HEADS
from tests.documents import snippet
from tests.flows.conftest import tiny_experiment


@pytest.fixture
def smallest(tiny_bert: Path) -> dict[str, Any]:
    """One head on one task."""
    fields = tiny_experiment(tiny_bert)
    fields["tasks"].pop("ratio 0.5")
    fields["report"]["x_axis"]["values"].pop("ratio 0.5")
    fields["methods"] = {"mean": fields["methods"]["mean"]}
    return fields | {"seeds": (np.int64(0),)}


def test_the_readme_is_true_and_a_mapping_is_the_same_as_a_file(
    smallest: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERMAFROST_HOME", "kept")
    fields = smallest | {"name": "mine", "seeds": [0]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    names: dict[str, Any] = {}
    code = snippet("the front door").replace('"GLOT"', '"mean"')
    exec(compile(code, "README.md", "exec"), names)
    made = {"corpus": 1, "extract": 1, "fit": 1, "score": 1, "report": 1}
    assert {row.stage: row.n_run for row in names["planned"].rows} == made
    assert names["result"].computed == made
    assert names["result"].results() == names["numbers"]
    assert names["vectors"].shape == (1, 384)
    home = names["home"]
    assert home.folder == tmp_path / "kept"
    assert not (tmp_path / ".permafrost").exists()
    again = permafrost.run(smallest | {"name": "mine"}, home=home)
    assert again.computed == {}, "NumPy's numbers and tuples are those of the file"
    other = permafrost.plan("mine.yaml", home=home, overrides=["seeds=[3]"])
    assert {row.stage for row in other.rows if row.n_run} == {"fit", "score", "report"}


@pytest.mark.deep
def test_prefect_runs_it_where_an_event_loop_runs(
    smallest: dict[str, Any], prefect_server: None, tmp_path: Path
) -> None:
    async def cell() -> permafrost.PipelineResult:
        return permafrost.run(smallest, home=tmp_path, engine="prefect")

    assert sum(asyncio.run(cell()).computed.values()) == 5
    assert permafrost.run(smallest, home=tmp_path).computed == {}, "the same keys"


def test_an_interrupted_cell_ends_its_work_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, smallest: dict[str, Any], tmp_path: Path
) -> None:
    at_exit: list[object] = []
    main = threading.get_ident()
    monkeypatch.setattr(atexit, "register", at_exit.append)
    ended = threading.Event()

    def main_waits() -> bool:
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code.co_name != "result":
            frame = frame.f_back
        return frame is not None

    def work(*arguments: object) -> None:
        while not main_waits():
            time.sleep(0.001)
        # As when somebody interrupts a kernel: the signal comes to the main thread.
        signal.pthread_kill(main, signal.SIGINT)
        try:
            while True:
                STOP.check()
                time.sleep(0.001)
        finally:
            ended.set()

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            permafrost.run(smallest, home=tmp_path, engine="prefect")

    monkeypatch.setattr(front, "checked", work)
    # A shell that started the tests in the background has them ignore it.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, earlier)
    assert ended.is_set()
    assert not STOP.asked, "the next cell may run"
    assert gc.freeze in at_exit, "an interrupted script ends soon"


def test_a_run_waits_for_one_that_was_interrupted_until_nobody_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
    smallest: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(atexit, "register", lambda _: None)
    main = threading.get_ident()
    left, ended = threading.Event(), threading.Event()

    def main_is_in(*names: str) -> bool:
        frame, found = sys._current_frames()[main], set[str]()
        while frame is not None:
            found.add(frame.f_code.co_name)
            frame = frame.f_back
        return found.issuperset(names)

    def work(*arguments: object) -> None:
        # For the result, then for the end of what was told to end, then for that of its thread.
        for waits in (("result",), ("until", "wait"), ("shutdown", "join")):
            while not main_is_in(*waits):
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGINT)
        left.wait()
        time.sleep(0.1)
        ended.set()

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            permafrost.run(smallest, home=tmp_path, engine="prefect")

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(front, "checked", work)
            loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, earlier)
    assert STOP.asked
    assert not ended.is_set()
    left.set()
    monkeypatch.setattr(front, "run_serially", lambda *_: (ended.is_set(), STOP.asked))
    assert permafrost.run(smallest, home=tmp_path) == (True, False)
    assert "interrupted before is still ending; waiting for it" in capsys.readouterr().err


def test_what_another_interrupted_run_ends_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, smallest: dict[str, Any], tmp_path: Path
) -> None:
    def ended(*arguments: object) -> None:
        raise Stopped

    monkeypatch.setattr(front, "run_serially", ended)
    with pytest.raises(permafrost.PermafrostError, match="another one in this process was interr"):
        permafrost.run(smallest, home=tmp_path)


def test_a_kind_is_registered_by_its_class(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from typing import Literal\nimport permafrost\n"
        "from permafrost.stages.heads.poolings import MeanHead\n\n"
        "@permafrost.register\nclass Own(MeanHead):\n"
        "    kind: Literal['own_mean'] = 'own_mean'\n\n"
        "class Half(permafrost.stages.heads.head.Head):\n    kind: Literal['half'] = 'half'\n"
    )
    (tmp_path / "door_kinds.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    module = importlib.import_module("door_kinds")
    own = module.Own
    assert HEADS.kinds()["own_mean"] is own
    # In a reload the decorator is called while the module still has the former class.
    again = importlib.reload(module).Own
    assert HEADS.kinds()["own_mean"] is again is not own
    with pytest.raises(permafrost.InputError, match="is no kind"):
        permafrost.register(dict)
    with pytest.raises(permafrost.InputError, match=r"Half .*lacks build; write it"):
        permafrost.register(module.Half)
    assert "half" not in HEADS.kinds()
    with pytest.raises(permafrost.InputError, match="put it in a file"):
        permafrost.register(type("Here", (again,), {"__module__": "__main__"}))


@pytest.mark.parametrize(
    ("experiment", "given", "says"),
    [
        (3, {}, "of type int; give the path"),
        ("", {}, "the experiment is empty; give the path of a YAML file"),
        ("nowhere.yaml", {}, "no experiment file nowhere.yaml"),
        ({3: 4}, {}, "key 3 of type int"),
        ({"tasks": {"t": [{1}]}}, {}, r"the experiment.tasks.t\[0\] is .*, of type set"),
        ({}, {}, "the experiment has 3 wrong field"),
        ({}, {"overrides": "a=b"}, r"write \[text\]"),
        ({}, {"overrides": 3}, r"overrides is 3, of type int; .* such as \['seeds=\[0\]'\]"),
        ({}, {"overrides": {"seeds": [0]}}, r"of type dict; overrides is a list of texts such as"),
        ({}, {"overrides": [b"x=1"]}, r"overrides\[0\] is b'x=1', of type bytes; overrides is a "),
        ({}, {"overrides": ["seeds=[0]", 3]}, r"overrides\[1\] is 3, of type int; overrides is a "),
        ({}, {"overrides": None}, "the experiment has 3 wrong field"),
        ({}, {"engine": "slurm"}, "there are serial, prefect"),
    ],
)
def test_wrong_experiments_are_told(experiment: Any, given: Any, says: str) -> None:
    with pytest.raises(permafrost.InputError, match=says):
        permafrost.run(experiment, **given)


def test_an_experiment_inside_itself_is_refused() -> None:
    fields: dict[str, Any] = {}
    fields["x-self"] = [fields]
    with pytest.raises(permafrost.InputError, match="contain itself"):
        permafrost.plan(fields)
