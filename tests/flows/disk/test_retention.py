"""`gc` by age, beside runs that begin and writers: what goes and what never goes."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import permafrost
from permafrost.flows import recording, running
from permafrost.flows.build import ExperimentGraph
from permafrost.flows.cli import removal
from permafrost.flows.disk.garbage import collect
from permafrost.flows.disk.limits import Limits, parse_limits
from permafrost.flows.preview import Preview
from permafrost.flows.records.pins import pin, pinned
from permafrost.flows.records.runs import read_run, run_path
from permafrost.flows.running import checked, reused, run_serially
from permafrost.storage.adapted_stores import RECORD, STORE, AdaptedStore
from permafrost.storage.artifacts import ArtifactRef, ArtifactSpec, ArtifactStore
from permafrost.storage.disk_use import files_of_home, files_under
from permafrost.storage.errors import (
    DiskFullError,
    InputError,
    NotFoundError,
    RemovedError,
    StoreBusyError,
)
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.writing import writing
from permafrost.storage.gate import pass_gate, removing
from tests.documents import snippet
from tests.flows.disk.aged_home import Aged, written
from tests.flows.run_records import begun, finished
from tests.flows.test_cli import Cli


@pytest.mark.parametrize(
    ("age", "n"),
    [("101d", 0), ("30d", 1), ("19d", 3), ("2w", 4), ("216h", 4), ("7d", 5), ("0h", 5)],
)
def test_gc_by_age_takes_what_no_run_has_used_for_so_long(aged: Aged, age: str, n: int) -> None:
    # What a run used eight days ago is not as old as its files; what something was made from is as young as
    # that; and a clock that went back makes nothing old.
    assert aged.going(parse_limits(age, None)) == aged.paths(n)


def test_a_store_that_is_a_link_stays_and_its_bytes_count(
    aged: Aged, capsys: pytest.CaptureFixture[str]
) -> None:
    total = sum(file.bytes for file in files_of_home(aged.home))
    elsewhere = aged.home.parent / "elsewhere"
    aged.store.root.rename(elsewhere)
    aged.store.root.symlink_to(elsewhere)
    taken = sum(file.bytes for file in files_of_home(aged.home))
    assert total <= taken <= total + 4096, "the link itself"
    cli = Cli(aged.home, capsys)
    name = f"features/{aged.store.store_id}"
    assert name not in cli.json("gc", "--older-than", "30d", "--dry-run")["stayed"]
    for how in (("--dry-run",), ()):
        done = json.loads(cli("gc", "--quota", "1kB", *how, "--json", code=1))
        assert done["stayed"][name].startswith(f"it is a link to {elsewhere};")
        assert name not in done["removed"]
    assert done["bytes"] == sum(done["removed"].values())
    assert done["bytes_left"] == sum(file.bytes for file in files_of_home(aged.home))
    assert FeatureStore.open(aged.store.root).segments()
    assert f"{name} stays: it is a link to {elsewhere}; delete" in cli("gc").replace("\n", " ")


def test_a_store_that_another_process_writes_is_not_promised(
    aged: Aged, capsys: pytest.CaptureFixture[str]
) -> None:
    cli, name = Cli(aged.home, capsys), f"features/{aged.store.store_id}"
    n_kept = cli.json("gc", "--dry-run")["kept"]
    spec = ArtifactSpec(stage=STORE, config={})
    record = AdaptedStore(identity=aged.store.record.identity, backbone="adapt/" + "0" * 32)
    with ArtifactStore(aged.home).publishing(spec, {}) as draft:
        (draft.folder / RECORD).write_text(record.model_dump_json())
    written(ArtifactStore(aged.home).folder(spec.ref), 15)
    with writing(aged.store):
        for how in (("--dry-run",), ("--older-than", "14d", "--dry-run"), ()):
            found = cli.json("gc", *how)
            assert name not in found["removed"]
            assert f"artifacts/{spec.ref}" not in found["removed"], "by which it was made"
            assert found["stayed"][name].startswith(f"process {os.getpid()} on ")
            assert found["stayed"][name].endswith(" writes it")
        assert found["kept"] == n_kept + 2
        assert cli.json("gc", "--older-than", "30d")["stayed"] == {}, "too young in any case"
        total = sum(file.bytes for file in files_under(aged.home))
        assert cli.json("gc", "--quota", f"{total}B")["stayed"] == {}, "no need"
    assert name in cli.json("gc")["removed"]


def test_limits_keep_what_is_pinned_named_or_under_way(aged: Aged) -> None:
    begun(aged.home, "other", [str(aged.months)])
    pin(aged.home, "mine@1")
    found = collect(
        aged.home, [aged.store.store_id, str(aged.derived)], limits=Limits(quota_bytes=0)
    )
    assert [str(ref) for ref in found.refs] == [str(aged.future)]
    assert found.stores == ()


def test_a_terminal_is_asked_first(
    aged: Aged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr(removal.typer, "confirm", confirm)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    cli = Cli(aged.home, capsys)
    said = cli("gc", "--older-than", "30d", code=1)
    assert f"artifacts/{aged.months}" in said
    assert "nothing was removed" in said
    assert ArtifactStore(aged.home).is_done(aged.months)
    assert "removed 1 (" in cli("gc", "--older-than", "30d")
    assert "removed 2 (" in cli("gc", "--older-than", "19d", "--yes")
    assert '"over_quota": false' in cli("gc", "--older-than", "14d", "--json"), "programs read that"
    assert len(asked) == 2


def test_a_run_that_begins_while_gc_removes_waits_and_sees_what_is_left(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, artifacts = collect(aged.home, []), ArtifactStore(aged.home)
    happened: list[str] = []

    def run() -> None:
        begun(aged.home, "begins", [str(aged.months)])
        happened.append("recorded")
        pass_gate(aged.home)
        happened.append(f"looks: {artifacts.is_done(aged.months)}")

    thread = threading.Thread(target=run)
    real = ArtifactStore.unpublish

    def slow(self: ArtifactStore, ref: ArtifactRef, check: Callable[[], None]) -> Path:
        if not happened:
            thread.start()
            while not happened:
                time.sleep(0.01)
            time.sleep(0.3)  # time to do it wrong
            happened.append("removed")
        return real(self, ref, check)

    monkeypatch.setattr(ArtifactStore, "unpublish", slow)
    assert found.remove() == {}
    thread.join()
    assert happened == ["recorded", "removed", "looks: False"]


def test_a_run_looks_what_is_there_after_the_gate(
    finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    artifacts = ArtifactStore(home)

    def gc_was_faster(*_: object) -> None:
        for ref in artifacts.refs("report"):
            artifacts.remove(ref)

    experiment = finished_home.parent / "tiny.yaml"
    found = checked(str(experiment), str(home), [])
    monkeypatch.setattr(recording, "pass_gate", gc_was_faster)
    # Tests before this one may have named a server, which would have the run go on there.
    monkeypatch.setattr(running, "server_is_named", lambda: False)
    with pytest.raises(RemovedError, match=r"report/.* was removed since this run looked"):
        reused(found)
    assert run_serially(experiment, home).computed == {"report": 1}


def test_an_experiment_of_which_something_goes_while_it_is_checked_is_checked_again(
    finished_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gone = running.check_showing, [finished_home / "artifacts" / "corpus" / "texts.parquet"]

    def removed_on_the_way(nodes: ExperimentGraph, home: Path) -> Preview:
        if gone:
            gone.pop().read_bytes()
        return real(nodes, home)

    monkeypatch.setattr(running, "check_showing", removed_on_the_way)
    experiment = str(finished_home.parent / "tiny.yaml")
    assert checked(experiment, str(finished_home), []).context.home == finished_home
    assert not gone


def test_what_a_writer_holds_stays_and_two_do_not_remove_at_once(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = collect(aged.home, [])
    with writing(aged.store):
        stays = found.remove()
    ((path, why),) = stays.items()
    assert path == aged.store.root
    assert why.startswith(f"process {os.getpid()} on ")
    assert [s.store_id for s in all_stores(aged.home)] == [aged.store.store_id]
    monkeypatch.setattr("permafrost.storage.gate.PATIENCE_S", 0.0)
    with removing(aged.home), pytest.raises(StoreBusyError, match="another process is removing"):
        collect(aged.home, []).remove()
    assert collect(aged.home, []).remove() == {}
    assert all_stores(aged.home) == []


def test_a_disk_that_gets_full_leaves_nothing_half_removed(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, real = collect(aged.home, []), ArtifactStore.unpublish
    first, second, *_ = found.refs

    def full(self: ArtifactStore, ref: ArtifactRef, check: Callable[[], None]) -> Path:
        if ref == second:
            raise DiskFullError("no room to write")
        return real(self, ref, check)

    monkeypatch.setattr(ArtifactStore, "unpublish", full)
    with pytest.raises(DiskFullError):
        found.remove()
    artifacts = ArtifactStore(aged.home)
    assert not artifacts.is_done(first)
    assert artifacts.is_done(second)
    assert not list(aged.home.rglob(".draft-*"))
    monkeypatch.undo()
    assert collect(aged.home, []).remove() == {}
    assert not artifacts.is_done(second)


def test_a_full_disk_does_not_keep_a_store_that_nothing_uses(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: FeatureStore) -> None:
        raise DiskFullError("no room to write")

    monkeypatch.setattr("permafrost.storage.features.writing.keep_copies", full)
    assert collect(aged.home, []).remove() == {}
    assert all_stores(aged.home) == []


def test_a_name_to_keep_that_fits_several_things_is_refused(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = aged.store.store_id
    for name in (store, f"features/{store}", f"features/{store[:12]}"):
        assert collect(aged.home, [name]).stores == ()
    real = ArtifactStore.refs

    def one_more(self: ArtifactStore, stage: str | None = None) -> list[ArtifactRef]:
        return [*real(self, stage), ArtifactRef(stage="fit", key=store[:8] + "0" * 24)]

    monkeypatch.setattr(ArtifactStore, "refs", one_more)
    with pytest.raises(InputError, match=rf"'{store[:4]}' is ambiguous \(2: features/{store[:8]}"):
        collect(aged.home, [store[:4]])
    assert collect(aged.home, [f"features/{store[:4]}"]).stores == ()


def test_the_same_in_python(read: Cli, aged: Aged, tmp_path: Path) -> None:
    home = permafrost.open(read.home)
    plan = home.drop(arrays="attention_rows/1", dry_run=True)
    assert home.drop(arrays=["attention_rows/1"]).as_json() == plan.as_json()
    assert "attention_rows/1" not in home.stores()[0].arrays()
    with pytest.raises(InputError, match="used=True"):
        home.drop(arrays="hidden/1")
    old = permafrost.open(aged.home)
    would = old.gc(older_than="30d", dry_run=True)
    assert [drop.path for drop in would] == [f"artifacts/{aged.months}"]
    assert old.gc(older_than="30d") == would
    assert not old.artifacts.is_done(aged.months)
    old.pin("mine@1")
    assert f"artifacts/{aged.ran}" not in {drop.path for drop in old.gc(quota="0kB")}
    old.unpin("mine@1")
    assert [drop.path for drop in old.gc()] == [f"artifacts/{aged.ran}"]


def test_the_snippet_of_the_page(read: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(read.home.parent)
    record = read_run(run_path(read.home, "mine"))
    finished(read.home, "mine", record.artifacts, record.stores)
    read.home.rename(".permafrost")
    exec(compile(snippet("keeps a home small"), "retention.md", "exec"), {})
    home = permafrost.open(".permafrost")
    assert home.stores()[0].arrays() == [
        "attention_rows/1",
        "pooled/hidden_mean/1",
        "span",
        "token_ids",
    ]
    assert pinned(home.folder) == ["mine@1"]


def test_a_head_that_goes_while_it_is_loaded_is_an_error_that_says_so(
    finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    real = ArtifactStore.open

    def removed_after(self: ArtifactStore, ref: ArtifactRef) -> Path:
        folder = real(self, ref)
        self.remove(ref)
        return folder

    monkeypatch.setattr(ArtifactStore, "open", removed_after)
    with pytest.raises(
        NotFoundError, match=r"fit/.* holds no trained head: .*head.json is missing"
    ):
        permafrost.open(home).encoder(ArtifactStore(home).refs("fit")[0])
    with pytest.raises(RemovedError, match=r"report/.*summary.json is gone: it was removed while"):
        permafrost.open(home).results("tiny")
