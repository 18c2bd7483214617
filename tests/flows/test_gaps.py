"""What a run with failures says and leaves."""

import datetime
import errno
import os
import shutil
from pathlib import Path

import pytest

from permafrost.flows import recording
from permafrost.flows.disk.garbage import collect
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.nodes import report_writing
from permafrost.flows.pipeline import raise_first, run_serially
from permafrost.flows.records import runs
from permafrost.flows.records.history import RunScore, read_history
from permafrost.flows.records.runs import (
    RunRecord,
    begin_run,
    end_run,
    gaps_folder,
    remove_gaps,
    run_files,
    unfinished_runs,
)
from permafrost.storage.errors import CorruptDataError, InputError, PermafrostError
from tests.flows.engine.sums import total
from tests.storage.small_store import filled_store, new_store

A, B, C = total("a", 1), total("b", 2), total("c", 3)
WRONG = Outcome(A, "failed", InputError("yours"))
BROKEN = Outcome(B, "failed", CorruptDataError("not yours"))
SKIPPED = Outcome(C, "skipped", because=A)


def notes(failed: list[Outcome], error: type[PermafrostError], report: Path | None = None) -> str:
    outcomes = {o.node.id: o for o in (*failed, SKIPPED)}
    with pytest.raises(error) as caught:
        raise_first(failed, outcomes, report)
    assert type(caught.value) is error
    return " | ".join(caught.value.__notes__)


def test_the_users_input_is_to_blame_only_if_all_that_failed_was_theirs() -> None:
    WRONG.error.__notes__ = []  # type: ignore[union-attr]
    assert "while running 'a'" in notes([WRONG], InputError)
    told = notes([WRONG, BROKEN], CorruptDataError, Path("there.html"))
    assert "while running 'b'" in told, "exit code 2 would say that nothing but the input is wrong"
    assert "1 more failed: a" in told
    assert "1 skipped" in told
    assert "there.html" in told
    assert told.endswith("the same command goes on from here")


def test_a_run_is_a_root_of_garbage_collection_from_its_beginning_to_its_end(
    tmp_path: Path,
) -> None:
    record = RunRecord(experiment="x", finished="", artifacts=(), stores=("s",))
    begin_run(tmp_path, record)
    assert [r.stores for r in unfinished_runs(tmp_path)] == [("s",)]
    assert run_files(tmp_path) == [], "it has not finished"
    gaps_folder(tmp_path, "x").mkdir()
    (gaps_folder(tmp_path, "x") / "report.html").touch()
    assert collect(tmp_path, []).folders == []
    end_run(tmp_path, record)
    assert list(unfinished_runs(tmp_path)) == []
    assert [p.name for p in run_files(tmp_path)] == ["x.json"]
    assert not gaps_folder(tmp_path, "x").exists()


def unfinished(home: Path) -> list[tuple[str, ...]]:
    return sorted(record.artifacts for record in unfinished_runs(home))


def test_a_run_with_other_settings_does_not_let_go_of_what_one_that_was_killed_made(
    tmp_path: Path,
) -> None:
    def of(*refs: str, began: str = "", stores: tuple[str, ...] = ()) -> RunRecord:
        return RunRecord(experiment="x", finished=began, artifacts=refs, stores=stores)

    now = datetime.datetime.now(datetime.UTC)
    begin_run(tmp_path, of("fit/a", "report/a", began=now.isoformat(), stores=("s",)))
    begin_run(tmp_path, of("fit/b", began=(now - datetime.timedelta(days=31)).isoformat()))
    begin_run(tmp_path, of("fit/c"))
    begin_run(tmp_path, of("fit/c").model_copy(update={"experiment": "x-2"}))
    assert len(unfinished(tmp_path)) == 4
    end_run(tmp_path, of("fit/c", "report/c"))
    assert unfinished(tmp_path) == [("fit/a", "report/a"), ("fit/c",)], "of x, and x-2's own"
    end_run(tmp_path, of("fit/a", "report/d"))
    assert len(unfinished(tmp_path)) == 2, "its store is not the run's"
    end_run(tmp_path, of("fit/a", "fit/d", "report/d", stores=("s",)))
    assert unfinished(tmp_path) == [("fit/c",)]


def test_records_of_unfinished_runs_of_earlier_versions_are_read_and_damaged_ones_removed(
    tmp_path: Path,
) -> None:
    record = RunRecord(experiment="x", finished="", artifacts=("fit/a",), stores=())
    folder = tmp_path / "runs" / "unfinished"
    begin_run(tmp_path, record)
    (made,) = folder.iterdir()
    made.rename(folder / "x.json")
    assert unfinished(tmp_path) == [("fit/a",)]
    made.write_text("{")
    with pytest.raises(CorruptDataError, match="run the experiment again"):
        unfinished(tmp_path)
    end_run(tmp_path, record)
    assert list(folder.iterdir()) == []


def test_what_failed_is_told_where_the_report_with_gaps_finds_no_room(
    experiment_file: Path, finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, of which the nodes have failed as well."""
    home = Path(shutil.copytree(finished_home, tmp_path / "home"))

    def no_room(_node: object, _context: object, folder: Path, *_: object) -> None:
        (folder / "results.parquet").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(report_writing, "write", no_room)
    overrides = ["methods.shuffled.optim={lr: 1.0e+30, max_epochs: 3, batch_size: 4}"]
    with pytest.raises(PermafrostError, match="loss") as caught:
        run_serially(experiment_file, home, overrides)
    assert "report with the gaps" not in " ".join(caught.value.__notes__)
    left = [path for path in gaps_folder(home, "tiny").parent.iterdir() if path.is_dir()]
    assert left == [], "half a report was left"
    ended = read_history(home, "tiny").runs[-1].ended
    assert ended is not None
    assert (ended.outcome, "loss" in (ended.error or "")) == ("failed", True)


def test_what_failed_is_told_where_the_report_with_gaps_has_a_bug(
    experiment_file: Path, finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(shutil.copytree(finished_home, tmp_path / "home"))

    def wrong(*_: object) -> None:
        raise ValueError("zero-size array\nand more")

    monkeypatch.setattr(report_writing, "write", wrong)
    overrides = ["methods.shuffled.optim={lr: 1.0e+30, max_epochs: 3, batch_size: 4}"]
    with pytest.raises(PermafrostError, match="loss") as caught:
        run_serially(experiment_file, home, overrides)
    said = "no report of the rest could be written (ValueError: zero-size array)"
    assert said in caught.value.__notes__
    assert not gaps_folder(home, "tiny").exists()
    ended = read_history(home, "tiny").runs[-1].ended
    assert ended is not None
    assert "loss" in (ended.error or "")


def test_what_failed_is_told_where_another_run_removes_the_report_with_gaps(
    experiment_file: Path, finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of one experiment write and remove theirs, and two may do so at once."""
    home = Path(shutil.copytree(finished_home, tmp_path / "home"))
    own = recording.scores_of

    def after_another(results: Path) -> tuple[RunScore, ...]:
        remove_gaps(home, "tiny")
        return own(results)

    monkeypatch.setattr(recording, "scores_of", after_another)
    overrides = ["methods.shuffled.optim={lr: 1.0e+30, max_epochs: 3, batch_size: 4}"]
    with pytest.raises(PermafrostError, match="loss"):
        run_serially(experiment_file, home, overrides)
    ended = read_history(home, "tiny").runs[-1].ended
    assert ended is not None
    assert (ended.outcome, "loss" in (ended.error or "")) == ("failed", True)


def test_a_report_with_gaps_is_removed_by_two_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gaps_folder(tmp_path, "x")
    folder.mkdir(parents=True)

    def seen_by_both(path: Path) -> bool:
        there = path.exists()
        shutil.rmtree(path)
        return there

    monkeypatch.setattr(runs, "is_there", seen_by_both)
    remove_gaps(tmp_path, "x")
    assert not folder.exists()


def test_a_store_that_another_run_has_only_begun_says_nothing_of_its_making(
    tmp_path: Path,
) -> None:
    """The run that it refuses writes a report of what there is, which asks for it."""
    assert report_writing._made(new_store(tmp_path / "begun").store) == {}
    assert report_writing._made(filled_store(tmp_path / "filled", 3).store)["library"] == "1.0"
