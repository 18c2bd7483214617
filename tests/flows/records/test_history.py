"""Records of every run: numbered, written once, read one by one, and what garbage collection makes of
them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from permafrost.flows.cli.history import run_lines
from permafrost.flows.disk.garbage import collect
from permafrost.flows.records.history import (
    end,
    experiments,
    find_run,
    half_path,
    history_folder,
    names_run,
    read_history,
)
from permafrost.flows.records.pins import pin, pin_path, pin_problems, pinned, unpin
from permafrost.flows.records.runs import RunRecord, begin_run, run_path, write_run
from permafrost.storage.artifacts import ArtifactSpec
from permafrost.storage.drafts import owner
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.dropping import drop_arrays
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.sealed import read_sealed
from tests.damage.kinds import DAMAGE
from tests.damage.small_home import FIT, UNUSED, SmallHome, build, garbage, publish
from tests.flows.run_records import begun, finished
from tests.storage.small_store import IDENTITY

GARBAGE = Path("artifacts/fit") / UNUSED.ref.key


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SmallHome:
    return build(tmp_path_factory.mktemp("history") / "home")


@pytest.fixture
def home(made: SmallHome, tmp_path: Path) -> SmallHome:
    return made.copied(tmp_path / "home")


def test_runs_are_counted_by_experiment_and_no_two_get_one_number(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: begun(tmp_path).number, range(24)))
    assert sorted(given) == list(range(1, 25))
    assert begun(tmp_path, "other").number == 1
    assert experiments(tmp_path) == ["mine", "other"]
    read = read_history(tmp_path, "mine")
    assert [run.name for run in read.runs] == [f"mine@{n}" for n in range(1, 25)]
    assert read.problems == ()


def test_a_record_is_written_once_and_carries_the_digest_of_its_content(tmp_path: Path) -> None:
    first = finished(tmp_path, config={"lr": 0.5})
    files = sorted(history_folder(tmp_path, "mine").glob("*.json"))
    before = {path: path.read_bytes() for path in files}
    assert [path.name for path in files] == ["000001.begun.json", "000001.ended.json"]
    assert all(read_sealed(path)[1] for path in files)
    assert first.ended is not None
    end(tmp_path, first.ended.model_copy(update={"outcome": "failed"}))
    finished(tmp_path)
    assert {path: path.read_bytes() for path in files} == before
    assert find_run(tmp_path, "mine@1") == first
    assert first.begun.config == {"lr": 0.5}


def test_a_run_that_was_killed_has_stopped_and_one_that_lives_is_running(
    tmp_path: Path, dead: str
) -> None:
    begun(tmp_path, process=dead)
    begun(tmp_path, process=owner())
    begun(tmp_path, process="00000000.1.1")
    states = [(run.state, run.may_be_running) for run in read_history(tmp_path, "mine").runs]
    assert states == [("stopped", False), ("running", True), ("not ended", True)]
    finished(tmp_path)
    runs = read_history(tmp_path, "mine").runs
    told = ["\n".join(run_lines(run, False, scores=True)) for run in runs]
    said = "no end is recorded: it was killed, or there was no room on the disk"
    assert [said in lines for lines in told] == [True, False, False, False]


def test_an_unknown_run_is_told_with_those_there_are(tmp_path: Path) -> None:
    for _ in range(3):
        finished(tmp_path)
    half_path(tmp_path, "mine", 2, "begun").unlink()
    half_path(tmp_path, "mine", 2, "ended").unlink()
    with pytest.raises(NotFoundError, match=r"mine has no run 7; it has @1, @3$"):
        find_run(tmp_path, "mine@7")
    with pytest.raises(NotFoundError, match="that have run here are mine"):
        find_run(tmp_path, "yours@1")
    for number in ("last", "²", "٣", "1" * 5000, "-1", ""):
        with pytest.raises(NotFoundError, match="as in mine@2"):
            find_run(tmp_path, f"mine@{number}")
        assert not names_run(f"mine@{number}")


def test_the_only_record_of_an_earlier_version_is_run_1(tmp_path: Path) -> None:
    earlier = RunRecord(experiment="mine", finished="2026", artifacts=("fit/1",), stores=("s",))
    write_run(tmp_path, earlier)
    (run,) = read_history(tmp_path, "mine").runs
    assert (run.name, run.state, run.refs, run.time) == ("mine@1", "done", ("fit/1",), "2026")
    assert not history_folder(tmp_path, "mine").exists(), "who only reads writes nothing"
    assert begun(tmp_path).number == 2
    write_run(tmp_path, earlier.model_copy(update={"finished": "2027"}))
    assert find_run(tmp_path, "mine@1") == run


def test_a_damaged_record_of_an_earlier_version_stops_no_run(tmp_path: Path) -> None:
    write_run(tmp_path, RunRecord(experiment="mine", finished="", artifacts=(), stores=()))
    run_path(tmp_path, "mine").write_text("{")
    ((path, problem),) = read_history(tmp_path, "mine").problems
    assert path == run_path(tmp_path, "mine")
    assert "not valid JSON" in problem
    assert begun(tmp_path).number == 1


@pytest.mark.parametrize("half", ["begun", "ended"])
@pytest.mark.parametrize("how", ["digit", "cut", "zeros", "folder", "dangling link", "twin"])
def test_damage_is_named_hides_no_other_run_and_stops_gc(
    home: SmallHome, half: str, how: str
) -> None:
    for _ in range(3):
        finished(home.root, "mine", [str(FIT.ref)])
    path, twin = (half_path(home.root, "mine", n, half) for n in (3, 2))  # type: ignore[arg-type]
    assert garbage(home) == {GARBAGE}
    if how == "twin":
        path.write_bytes(twin.read_bytes())
    else:
        DAMAGE[how](path)
    history = read_history(home.root, "mine")
    assert [run.begun.number for run in history.runs] == [1, 2]
    ((_, problem),) = history.problems
    assert str(path) in problem
    assert "delete it" in problem
    with pytest.raises(CorruptDataError, match="Nothing was removed"):
        garbage(home)
    with pytest.raises(CorruptDataError, match=path.name):
        find_run(home.root, "mine@3")
    assert begun(home.root, "mine").number == 4


def test_a_lost_checksum_and_a_stray_file_are_damage(tmp_path: Path) -> None:
    finished(tmp_path)
    path = half_path(tmp_path, "mine", 1, "begun")
    text = path.read_text()
    path.write_text(text[: text.index(',\n "checksum"')] + "\n}\n")
    (path.parent / "notes.json").write_text("{}")
    problems = [problem for _, problem in read_history(tmp_path, "mine").problems]
    assert any("lost its checksum" in problem for problem in problems)
    assert any("notes.json is no record" in problem for problem in problems)


def test_gc_keeps_what_any_run_under_way_uses_and_not_what_a_dead_one_used(
    home: SmallHome, dead: str
) -> None:
    unused = [str(UNUSED.ref)]
    finished(home.root, "mine", unused)
    begun(home.root, "mine", unused, process=dead)
    assert garbage(home) == {GARBAGE}
    begun(home.root, "mine", unused)
    # Another run of the same experiment has begun since.
    record = RunRecord(experiment="mine", finished="", artifacts=(), stores=())
    begin_run(home.root, record)
    begun(home.root, "mine")
    assert garbage(home) == set()


def test_a_run_that_begins_while_gc_looks_keeps_what_it_uses(home: SmallHome) -> None:
    found = collect(home.root, [])
    assert [str(ref) for ref in found.refs] == [str(UNUSED.ref)]
    begun(home.root, "mine", [str(UNUSED.ref)])
    assert found.remove() == {home.root / GARBAGE: "a run that has begun since uses it"}
    assert (home.root / GARBAGE / "artifact.json").exists()


def test_gc_keeps_what_a_pinned_run_used(home: SmallHome) -> None:
    store = home.stores[1].store.store_id
    finished(home.root, "mine", [str(UNUSED.ref)], [store])
    finished(home.root, "mine", [str(FIT.ref)])
    assert garbage(home) == {GARBAGE}
    assert {p.relative_to(home.root) for p in collect(home.root, ["mine@1"]).folders} == set()
    assert pin(home.root, "mine@01").name == "mine@1"
    assert pinned(home.root) == ["mine@1"]
    assert garbage(home) == set()
    unpin(home.root, "mine@1")
    assert garbage(home) == {GARBAGE}
    with pytest.raises(NotFoundError, match="mine@1 is not pinned; pinned are none"):
        unpin(home.root, "mine@1")


def test_only_a_whole_run_can_be_pinned(home: SmallHome) -> None:
    finished(home.root, "mine", ["fit/" + "0" * 32, str(FIT.ref)])
    with pytest.raises(InputError, match=r"1 of 2 artifacts that it used is gone, such as fit/00"):
        pin(home.root, "mine@1")
    begun(home.root, "mine")
    with pytest.raises(InputError, match="it is running"):
        pin(home.root, "mine@2")
    with pytest.raises(NotFoundError, match="it has @1 to @2"):
        pin(home.root, "mine@9")


def test_a_run_that_extracted_only_and_one_without_its_store_are_told_apart(
    home: SmallHome,
) -> None:
    gone = "0" * 64
    finished(home.root, "mine", [str(FIT.ref), f"report/{'0' * 32}"])
    with pytest.raises(InputError, match=r"it extracted only, .* run 'downstream'"):
        pin(home.root, "mine@1")
    finished(home.root, "mine", [str(FIT.ref)], [home.stores[1].store.store_id, gone])
    with pytest.raises(
        InputError, match=r"mine@2 .* be pinned: 1 of 2 feature stores that it used is gone"
    ):
        pin(home.root, "mine@2")


def test_a_run_whose_arrays_were_dropped_cannot_be_pinned(home: SmallHome) -> None:
    store = FeatureStore.open(home.folder(home.stores[0]))
    spec = ArtifactSpec(
        stage="extract", config={"store": IDENTITY.model_dump(mode="json"), "arrays": ["hidden/1"]}
    )
    publish(home.root, spec)
    finished(home.root, "mine", [str(spec.ref)], [store.store_id])
    pin(home.root, "mine@1")
    with writing(store) as writer:
        drop_arrays(writer, ["hidden/1"])
    unpin(home.root, "mine@1")
    with pytest.raises(InputError, match=r"of what it read, hidden/1 of features/.* is not there"):
        pin(home.root, "mine@1")


def test_a_pin_of_what_is_not_there_is_named_and_stops_gc(home: SmallHome) -> None:
    run = finished(home.root, "mine", [str(UNUSED.ref)])
    pin(home.root, run.name)
    folder = home.root / GARBAGE
    folder.rename(folder.with_name("away"))
    ((path, problem),) = pin_problems(home.root)
    assert path == pin_path(home.root, run.name)
    assert f"used {UNUSED.ref}, which is not there" in problem
    with pytest.raises(CorruptDataError, match="permafrost unpin"):
        garbage(home)
    folder.with_name("away").rename(folder)
    for half in ("begun", "ended"):
        half_path(home.root, "mine", run.begun.number, half).unlink()  # type: ignore[arg-type]
    with pytest.raises(CorruptDataError, match="pinned has no record"):
        garbage(home)
