"""A run that finds everything done needs no Prefect, and one of two at once may wait for the other."""

import os
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from permafrost.flows import pipeline
from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.nodes.extraction import planned
from permafrost.flows.preview import Preview
from permafrost.flows.records.runs import read_run, run_path
from permafrost.flows.running import Checked
from permafrost.flows.server import named
from permafrost.stages.corpus.corpus import Corpus, stored_digests
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.writing import writing
from permafrost.storage.locked_files import LOOK_S
from tests.flows.conftest import tiny_experiment
from tests.flows.test_cli import Cli
from tests.flows.test_cli import cli as cli
from tests.flows.test_cli import finished as finished
from tests.flows.test_cli import texts as texts


def refused(*_: object, **__: object) -> Any:
    raise AssertionError("nothing has to be computed, and no server is named")


@pytest.fixture
def no_server_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a user's machine is; this process has Prefect in it, and a server's address."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delitem(sys.modules, "prefect")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_run_that_finds_everything_starts_no_server(
    finished: Cli, experiment_file: Path, no_server_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "run_checked", refused)
    before = read_run(run_path(finished.home, "tiny"))
    said = finished("run", str(experiment_file))
    assert "everything was reused" in said
    after = read_run(run_path(finished.home, "tiny"))
    assert (after.artifacts, after.stores) == (before.artifacts, before.stores)
    assert after.finished >= before.finished


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The experiments that Prefect is asked to run; none of them runs."""
    asked: list[object] = []

    def recorded(*arguments: object) -> Any:
        asked.append(arguments[1])
        sys.exit(0)

    monkeypatch.setattr(pipeline, "run_checked", recorded)
    return asked


def test_a_server_that_is_named_records_it(
    finished: Cli,
    experiment_file: Path,
    no_server_named: None,
    asked: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    finished("run", str(experiment_file))
    assert asked == [str(experiment_file)]


def test_what_is_missing_is_computed_with_prefect(
    finished: Cli, experiment_file: Path, no_server_named: None, asked: list[object]
) -> None:
    finished("run", str(experiment_file), "--set", "report.title=Another")
    assert asked == [str(experiment_file)]


@pytest.mark.deep
def test_a_serial_run_needs_no_prefect_unless_a_server_is_named(
    finished: Cli,
    experiment_file: Path,
    no_server_named: None,
    asked: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ("run", str(experiment_file), "--set", "report.title=Another")
    assert "computed: 1 report" in finished(*command, "--engine", "serial")
    assert not asked
    assert read_run(run_path(finished.home, "tiny")).engine == "serial"
    finished(*command[:-1], "report.title=Third", "--set", "runtime.engine=serial")
    assert not asked
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    finished(*command[:-1], "report.title=Fourth", "--engine", "serial")
    assert asked == [str(experiment_file)]


def test_a_server_may_be_named_by_the_environment_or_a_file(
    no_server_named: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not named.server_is_named()
    assert "prefect" not in sys.modules, "nothing can name one, so Prefect is not asked"
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['prefect']\n")
    assert not named.server_is_named()
    assert "prefect" not in sys.modules
    for name, text in (
        ("profiles.toml", "[profiles.mine]\nPREFECT_API_URL = 'http://127.0.0.1:1/api'\n"),
        ("prefect.toml", "[server.api]\n"),
        ("pyproject.toml", "[tool.prefect]\n"),
        (".env", "PREFECT_API_URL=http://127.0.0.1:1/api\n"),
    ):
        (tmp_path / name).write_text(text)
        for url in (None, "http://127.0.0.1:1/api"):
            settings = SimpleNamespace(api=SimpleNamespace(url=url))
            asked = SimpleNamespace(get_current_settings=lambda settings=settings: settings)
            monkeypatch.setitem(sys.modules, "prefect.settings", asked)
            assert named.server_is_named() is (url is not None)
        (tmp_path / name).unlink()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert named.server_is_named()


@pytest.mark.parametrize("wait", [True, False])
def test_one_of_two_at_once_says_who_writes_and_may_wait(
    finished: Cli, texts: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    (store,) = all_stores(finished.home)
    first = ExitStack()
    first.enter_context(writing(store))
    monkeypatch.setattr("time.sleep", lambda seconds: None if seconds <= LOOK_S else first.close())
    command = ("extract", str(texts), "--backbone", str(tiny_bert), "--capture", "hidden=1@tokens")
    with first:
        said = finished(*command, *(["--wait"] if wait else []), code=0 if wait else 1)
    me = f"process {os.getpid()} on {socket.gethostname()}, since 20"
    if wait:
        assert f"extract 3 texts: waiting for {me}" in said
        assert "4 texts: computed" in said
    else:
        assert f"is being written by {me}" in said
        for how in ("'--wait' of a command", "'runtime.extract.busy: wait' of an experiment"):
            assert how in " ".join(said.split())


def test_a_run_hands_the_flag_to_its_extractions(
    finished: Cli, experiment_file: Path, no_server_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def recorded(found: Checked, *_: object) -> Any:
        given.append(found.context.runtime.extract.busy)
        sys.exit(0)

    monkeypatch.setattr(pipeline, "run_checked", recorded)
    for more in ([], ["--wait"]):
        finished("run", str(experiment_file), "--set", "report.title=Another", *more)
    assert given == ["end", "wait"]


def test_the_printed_time_includes_start_up(
    finished: Cli, experiment_file: Path, no_server_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("permafrost.flows.cli.common.STARTED_S", time.monotonic() - 1000)
    said = finished.json("run", str(experiment_file))
    assert 1000 < said["seconds"] < 1000 + 3600


def test_what_is_stored_is_found_without_reading_a_text(
    finished: Cli, no_server_named: None, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny_experiment(tiny_bert)
    del experiment["tasks"]["ratio 0.5"], experiment["report"]["x_axis"]["values"]["ratio 0.5"]
    nodes = build_graph(load_experiment(experiment))
    context = Preview(nodes.graph, finished.home, nodes.experiment.runtime)
    (node,) = nodes.extractions.values()
    monkeypatch.setattr(Corpus, "load", refused)
    plan = planned(node, context)
    assert plan is not None
    assert plan.nothing_to_do
    assert plan.n_texts == 24 + 8 + 12


def test_a_published_corpus_with_broken_digests_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "texts.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptDataError, match="holds no texts of a corpus"):
        list(stored_digests(tmp_path))
