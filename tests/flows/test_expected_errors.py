"""An error that is foreseen ends a run in one line; Prefect's traceback is for those that are not."""

import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import SafetensorError

from permafrost.flows.cli import main
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.drafts import owner

FULL = "Error while serializing: I/O error: No space left on device (os error 28)"


class Tracebacks(logging.Handler):
    """The errors whose tracebacks Prefect would print."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[type[BaseException] | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(record.exc_info[0])


@pytest.fixture
def tracebacks() -> Iterator[Tracebacks]:
    handler, loggers = Tracebacks(), ("prefect.task_runs", "prefect.flow_runs")
    for name in loggers:
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in loggers:
        logging.getLogger(name).removeHandler(handler)


def _run(monkeypatch: pytest.MonkeyPatch, experiment: Path, home: Path, error: Exception) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("permafrost.stages.fit.trained.save_file", fails)
    changed = ["--set", "methods.GLOT.head.tau=0.5"]
    monkeypatch.setattr(
        sys, "argv", ["permafrost", "run", str(experiment), "--home", str(home), *changed]
    )
    main()


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
def test_a_full_disk_during_a_fit_is_told_in_one_line(
    finished_home: Path,
    experiment_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tracebacks: Tracebacks,
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    before = ArtifactStore(home).refs()
    # Of an earlier process with our number, such as a kill leaves; this run removes it first.
    place, pid, started = owner().split(".")
    (home / f"artifacts/fit/.draft-abc-{place}.{pid}.{int(started) - 1}-0123abcd").mkdir()
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, experiment_file, home, SafetensorError(FULL))
    lines = capfd.readouterr().err.splitlines()
    # Other tests of this process may have Prefect tell more than a program of ours does.
    (err,) = [line for line in lines if " | INFO " not in line]
    assert end.value.code == 1
    assert tracebacks.seen == []
    assert err.startswith("error: no room to write ")
    assert "No space left on device" in err
    assert "Free some space or choose another --home" in err
    assert ArtifactStore(home).refs() == before
    assert not list(home.glob("artifacts/*/.draft-*"))


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_that_nobody_named_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path / "copy"))

    monkeypatch.setattr("permafrost.flows.home.open_existing_home", no_room)
    monkeypatch.setattr(sys, "argv", ["permafrost", "ls", "--home", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err.strip()
    assert "no room on the disk for" in said.replace("\n", " ")
    assert "Traceback" not in said


@pytest.mark.deep
def test_an_error_of_our_own_keeps_its_traceback(
    finished_home: Path,
    experiment_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracebacks: Tracebacks,
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        _run(monkeypatch, experiment_file, home, ZeroDivisionError("a bug"))
    assert ZeroDivisionError in tracebacks.seen
