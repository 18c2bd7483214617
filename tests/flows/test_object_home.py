"""A home on an object store, from the command line, seen from several machines."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows import context
from permafrost.flows.pipeline import run_embedded
from permafrost.storage import replica
from tests.flows.test_cli import TEXTS, Cli
from tests.storage.object_server import ObjectServer, object_server

HOME = "s3://bucket/team/home"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with object_server() as state:
        for name, value in state.environment.items():
            monkeypatch.setenv(name, value)
        yield state
        _leave()


def _leave() -> None:
    for folder in list(replica._replicas):
        replica.detach(folder)


class Machine(Cli):
    """The command line with an own cache folder, as another machine has."""

    def __init__(self, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(cache, capsys)
        self.home, self._cache = HOME, cache

    def __call__(self, *arguments: str, code: int = 0) -> str:
        _leave()
        os.environ["PERMAFROST_CACHE"] = str(self._cache)
        try:
            return super().__call__(*arguments, code=code)
        finally:
            del os.environ["PERMAFROST_CACHE"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    return path


def test_what_one_machine_extracted_another_one_reads(
    server: ObjectServer,
    tmp_path: Path,
    texts: Path,
    tiny_bert: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (Machine(tmp_path / n, capsys) for n in ("first", "second"))
    arguments = (str(texts), "--backbone", str(tiny_bert))
    what = ("--capture", "hidden=all@tokens,attention_rows=all")
    assert f"{HOME}/features/" in first("extract", *arguments, *what)

    def no_loading(*_: object) -> None:
        raise AssertionError("the backbone was loaded")

    monkeypatch.setattr(context, "load_backbone", no_loading)
    assert "nothing was missing" in second("extract", *arguments, *what)
    out = tmp_path / "out.parquet"
    second("embed", *arguments, "--method", "mean", "-o", str(out))
    assert pq.read_table(out).column("text").to_pylist() == TEXTS
    assert "every checksum" in second("verify")
    (row,) = second.json("ls")["stores"]
    stored = sum(len(v) for k, v in server.objects.items() if "/features/" in k)
    assert row["bytes"] == stored
    assert second.json("du")["total"] == sum(map(len, server.objects.values()))
    assert second.json("show", row["store_id"][:8])["path"].startswith(f"{HOME}/features/")


@pytest.mark.deep
def test_an_experiment_is_reused_by_another_machine_and_collected(
    server: ObjectServer,
    prefect_server: None,
    experiment_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "first"))
    one_seed = ["seeds=[0]"]
    assert run_embedded(str(experiment_file), HOME, one_seed).computed["fit"]
    _leave()
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "second"))
    again = run_embedded(str(experiment_file), HOME, one_seed)
    assert not again.computed
    assert again.report.read_text().startswith("<!DOCTYPE html>")
    run_embedded(str(experiment_file), HOME, ["seeds=[1]"])
    machine = Machine(tmp_path / "second", capsys)
    before = set(server.objects)
    freed = machine.json("gc")
    gone = before - set(server.objects)
    assert gone
    assert {"/".join(k.split("/")[3:6]) for k in gone} == set(freed["removed"])
    assert "every checksum" in Machine(tmp_path / "third", capsys)("verify")


def test_a_home_that_is_a_file_or_of_an_unknown_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path, capsys)
    machine.home = "ftp://bucket/lab"
    assert "unknown kind of object store" in machine("ls", code=2)
    file = tmp_path / "file"
    file.write_text("x")
    machine.home = str(file)
    assert "is a file" in machine("ls", code=2)
