"""Records of runs: damaged ones are named, and nothing is removed while it is not known what is in use."""

import json
import shutil
from pathlib import Path

import pytest

from permafrost.flows.records.runs import RunRecord, read_run, run_path, run_problems, write_run
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import digest
from tests.damage.small_home import FIT, UNUSED, SmallHome, build, garbage, publish


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SmallHome:
    return build(tmp_path_factory.mktemp("runs") / "home")


@pytest.fixture
def home(made: SmallHome, tmp_path: Path) -> SmallHome:
    return made.copied(tmp_path / "home")


def _digits(path: Path) -> list[int]:
    return [i for i, byte in enumerate(path.read_bytes()) if chr(byte) in "0123456789abcdef"]


def test_no_digit_of_a_record_can_change_unseen(home: SmallHome) -> None:
    path = run_path(home.root, "first")
    whole = path.read_bytes()
    places = _digits(path)
    assert len(places) > 90
    for at in places:
        path.write_bytes(
            whole[:at] + (b"1" if whole[at : at + 1] != b"1" else b"2") + whole[at + 1 :]
        )
        (problem,) = run_problems(home.root, path)
        assert str(path) in problem
        with pytest.raises(CorruptDataError, match="Nothing was removed"):
            garbage(home)


def test_a_record_carries_the_digest_of_its_content(home: SmallHome) -> None:
    content = json.loads(run_path(home.root, "first").read_text())
    assert content.pop("checksum") == digest(content)


def test_a_record_of_an_earlier_version_is_read(home: SmallHome) -> None:
    path = run_path(home.root, "first")
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content))
    assert read_run(path).artifacts == (str(FIT.ref),)
    assert run_problems(home.root, path) == []
    assert garbage(home) == {Path("artifacts/fit") / UNUSED.ref.key}


@pytest.mark.parametrize("what", ["artifact", "store", "no key"])
def test_a_record_that_names_what_is_not_there_stops_gc(home: SmallHome, what: str) -> None:
    record = read_run(run_path(home.root, "first"))
    match what:
        case "artifact":
            shutil.rmtree(ArtifactStore(home.root).folder(FIT.ref))
            named = str(FIT.ref)
        case "store":
            shutil.rmtree(home.root / "features" / record.stores[0])
            named = f"features/{record.stores[0]}"
        case _:
            named = "fit/12"
            write_run(home.root, record.model_copy(update={"artifacts": (named,)}))
    with pytest.raises(CorruptDataError, match=f"names {named}, which is not there; run the"):
        garbage(home)
    if what == "artifact":
        publish(home.root, FIT)
        assert garbage(home) == {Path("artifacts/fit") / UNUSED.ref.key}


def test_a_record_under_the_name_of_another_experiment_is_damage(home: SmallHome) -> None:
    shutil.copy(run_path(home.root, "first"), run_path(home.root, "second"))
    (problem,) = run_problems(home.root, run_path(home.root, "second"))
    assert "is the record of 'first'" in problem


def test_the_next_run_replaces_a_folder_in_the_place_of_its_record(home: SmallHome) -> None:
    path = run_path(home.root, "first")
    record = read_run(path)
    path.unlink()
    (path / "inside").mkdir(parents=True)
    write_run(home.root, record)
    assert read_run(path) == record


def test_a_name_with_dots_is_a_name(tmp_path: Path) -> None:
    record = RunRecord(experiment="v1.2", finished="now", artifacts=(), stores=())
    write_run(tmp_path, record)
    assert read_run(run_path(tmp_path, "v1.2")) == record
