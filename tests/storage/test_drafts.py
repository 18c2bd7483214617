"""Drafts of dead processes are told from those of living ones, of other machines, and of no process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.storage import drafts
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.drafts import (
    draft_path,
    is_of_dead_process,
    owner,
    remove_dead_drafts_of,
    remove_drafts_of_dead_processes,
)

SPEC = ArtifactSpec(stage="fit", config={"a": 1})
MAKE = (
    "from pathlib import Path; from permafrost.storage.drafts import draft_path; "
    "print(draft_path(Path('x')).name)"
)


@pytest.fixture(scope="module")
def dead_name() -> str:
    """The name of a draft whose process has ended."""
    return subprocess.check_output([sys.executable, "-c", MAKE], text=True).strip()


def test_a_draft_is_dead_once_its_process_is(dead_name: str) -> None:
    assert is_of_dead_process(Path(dead_name))
    assert not is_of_dead_process(draft_path(Path("x")))


def test_a_draft_of_a_zombie_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", MAKE], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        name = maker.stdout.readline().strip()
        # Waits for the end, but leaves it to be reaped.
        os.waitid(os.P_PID, maker.pid, os.WEXITED | os.WNOWAIT)
        assert is_of_dead_process(Path(name))


def test_a_draft_whose_pid_belongs_to_a_later_process_is_dead() -> None:
    place, pid, started = owner().split(".")
    assert is_of_dead_process(Path(f".draft-x-{place}.{pid}.{int(started) - 1}-0123abcd"))
    assert not is_of_dead_process(Path(f".draft-x-{place}.{pid}.{started}-0123abcd"))


@pytest.mark.parametrize(
    "name", [".draft-abc-0123abcd", ".draft-abc-checkpoint", "model.safetensors"]
)
def test_what_names_no_process_belongs_to_nobody_dead(name: str) -> None:
    assert not is_of_dead_process(Path(name))


def test_a_draft_of_another_machine_or_boot_is_not_called_dead(
    dead_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "_place", lambda: "00000000")
    assert not is_of_dead_process(Path(dead_name))


def test_only_drafts_of_dead_processes_are_removed(tmp_path: Path, dead_name: str) -> None:
    store = ArtifactStore(tmp_path)
    with store.publishing(SPEC, {}) as mine:
        stage = mine.folder.parent
        runs = tmp_path / "runs"
        kept_folders = (stage / ".draft-abc-checkpoint", runs, runs / "history" / "mine")
        for folder in (stage / dead_name, *kept_folders):
            folder.mkdir(parents=True)
            (folder / "fit.pt").write_bytes(b"x")
            (folder / dead_name.replace("-x-", "-fit.pt-")).write_bytes(b"half of it")
        assert store.stale_drafts() == [stage / dead_name]
        assert remove_drafts_of_dead_processes(tmp_path) == 4
        assert sorted(p.name for p in stage.iterdir()) == sorted(
            [mine.folder.name, ".draft-abc-checkpoint"]
        )
        for kept in kept_folders:
            assert [p.name for p in kept.iterdir() if p.is_file()] == ["fit.pt"]
    assert remove_drafts_of_dead_processes(tmp_path / "nowhere") == 0


def test_only_dead_drafts_of_one_destination_are_removed(tmp_path: Path, dead_name: str) -> None:
    output = tmp_path / "out [1].parquet"
    of = {name: dead_name.replace("-x-", f"-{name}-") for name in (output.name, "out", "a")}
    (tmp_path / of[output.name]).write_bytes(b"half of it")
    (tmp_path / of["a"]).write_bytes(b"of another destination")
    mine = draft_path(output)
    mine.mkdir()
    # A name that begins like the destination's.
    longer = tmp_path / of[output.name].replace(".parquet", ".parquet-2")
    longer.write_bytes(b"")
    assert remove_dead_drafts_of(output) == 1
    assert {p.name for p in tmp_path.iterdir()} == {of["a"], mine.name, longer.name}
    (tmp_path / of["out"]).mkdir()
    (tmp_path / of["out"] / "model.safetensors").write_bytes(b"half of it")
    assert remove_dead_drafts_of(tmp_path / "out") == 1
    assert remove_dead_drafts_of(tmp_path / "nowhere" / "out") == 0


def test_a_folder_that_goes_while_drafts_are_looked_for_is_no_error(
    tmp_path: Path, dead_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python before 3.13 raises, where another process ends its checkpoint or its draft."""
    (tmp_path / dead_name).touch()
    glob = Path.glob

    def interrupted(self: Path, pattern: str) -> Iterator[Path]:
        yield from glob(self, pattern)
        raise FileNotFoundError("gone")

    monkeypatch.setattr(Path, "glob", interrupted)
    assert remove_drafts_of_dead_processes(tmp_path) == 1
    assert not (tmp_path / dead_name).exists()
