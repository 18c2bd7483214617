"""A home on an object store, from the command line, seen from several machines."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import permafrost
from permafrost.flows.records.history import read_history
from permafrost.flows.records.pins import pin, pinned, unpin
from permafrost.stages.extraction import backbone as loading
from permafrost.storage import replica
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.flows.run_records import finished
from tests.flows.test_cli import TEXTS, Cli
from tests.storage.object_server import ObjectServer

HOME = "s3://bucket/team/home"


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
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PERMAFROST_CACHE", str(self._cache))
            return super().__call__(*arguments, code=code)


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

    monkeypatch.setattr(loading, "_load_model", no_loading)
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
    assert permafrost.run(
        experiment_file, home=HOME, engine="prefect", overrides=one_seed
    ).computed["fit"]
    _leave()
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "second"))
    again = permafrost.run(experiment_file, home=HOME, engine="prefect", overrides=one_seed)
    assert not again.computed
    assert again.report.read_text().startswith("<!DOCTYPE html>")
    permafrost.run(experiment_file, home=HOME, engine="prefect", overrides=["seeds=[1]"])
    machine = Machine(tmp_path / "second", capsys)
    before = set(server.objects)
    freed = machine.json("gc")
    gone = before - set(server.objects)
    assert gone
    assert {"/".join(k.split("/")[3:6]) for k in gone} == set(freed["removed"])
    assert "every checksum" in Machine(tmp_path / "third", capsys)("verify")


def test_runs_of_two_machines_have_two_numbers_and_are_seen_by_a_third(
    server: ObjectServer, tmp_path: Path
) -> None:
    # Both know of no run when they begin theirs.
    first, second = (replica.attach(HOME, tmp_path / n, SilentProgress()) for n in "ab")
    assert [finished(folder).name for folder in (first, second, first)] == [
        f"mine@{n}" for n in (1, 2, 3)
    ]
    pin(first, "mine@1")
    third = replica.attach(HOME, tmp_path / "c", SilentProgress())
    history = read_history(third, "mine")
    assert [(run.name, run.state) for run in history.runs] == [
        (f"mine@{n}", "done") for n in (1, 2, 3)
    ]
    assert history.problems == ()
    assert pinned(third) == ["mine@1"]
    unpin(third, "mine@1")
    assert sorted(key.rpartition("/runs/")[2] for key in server.objects) == [
        f"history/mine/00000{n}.{half}.json" for n in (1, 2, 3) for half in ("begun", "ended")
    ]


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


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        ("/proc/x", "/proc may not be written to"),
        ("file", "Not a directory"),
        ("file/x", "is not a folder"),
        ("link", "it is a link to nothing"),
        ("link/x", "it is a link to nothing"),
    ],
)
def test_a_cache_that_cannot_be_one_is_refused(
    server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: str, why: str
) -> None:
    finished(replica.attach(HOME, tmp_path / "copy", SilentProgress()))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    said = Machine(tmp_path / cache, capsys)("ls", code=2)
    assert "the cache (PERMAFROST_CACHE)" in said
    assert why in said
    assert "choose another place" in said
    assert (tmp_path / "link").is_symlink()


def test_what_is_wrong_with_a_url_is_told(
    server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "cache", capsys)
    said = machine("pull", "--from", "s3://bucket/none", "--home", str(tmp_path / "home"), code=2)
    assert "no home in s3://bucket/none (it has none of features, artifacts, runs)" in said
    machine.home = "s3://bucket/a%20b"
    assert "without '?', '#' and '%'" in machine("ls", code=2)
    machine.home = "hf://datasets/lab/features"
    assert "'permafrost pull --from hf://datasets/OWNER/NAME'" in machine("ls", code=2)


def test_the_copy_of_an_object_store_is_no_home_of_its_own(
    server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written to it alone is removed when the URL is opened again."""
    folder = replica.attach(HOME, tmp_path / "copy", SilentProgress())
    finished(folder)
    _leave()
    local = Cli(folder, capsys)
    for place in (folder, folder / "runs"):
        local.home = place
        said = local("runs", code=2)
        assert f"is this machine's copy of {HOME}, which loses what is written to it alone" in said
    with pytest.raises(InputError, match=f"copy of {HOME}"):
        permafrost.open(folder)
