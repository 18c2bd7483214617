"""What a run would refuse is refused by `plan` and by `run` before anything is computed or written."""

import errno
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import build_graph
from permafrost.flows.checks import check, require_writable
from permafrost.flows.data_lookup import HINT
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from tests.flows.refused_experiments import REFUSED, Content, asked, classes, content_of, tasks


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says."""
    from permafrost.flows.cli import main

    argv, sys.argv = sys.argv, ["permafrost", *arguments]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = argv
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, ""), out + err
    assert "Traceback" not in err
    return " ".join(err.split())


def write(folder: Path, content: Content) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.few(12)
@pytest.mark.parametrize("case", REFUSED)
def test_plan_and_run_refuse_the_same_and_write_nothing(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    (tmp_path / "probed").mkdir()
    change, says = REFUSED[case]
    content = content_of(tiny_bert, tmp_path)
    change(content, tmp_path)
    capsys.readouterr()  # what saving a model says
    path = write(tmp_path, content)
    before = sorted(tmp_path.rglob("*"))
    said = [
        command(capsys, c, str(path), "--home", str(tmp_path / "home")) for c in ("plan", "run")
    ]
    assert said[0].removesuffix(f" ({HINT})") == said[1]
    assert re.search(says, said[0]), said[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_tokens_that_are_there_are_not_refused(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "probed").mkdir()
    content = content_of(tiny_bert, tmp_path)
    asked("next_token", "gpt2", offset=5)(content, tmp_path)
    check(build_graph(load_experiment(write(tmp_path, content))), tmp_path / "home")


def test_what_is_right_is_not_refused(tiny_bert: Path, tmp_path: Path) -> None:
    path = write(tmp_path, content_of(tiny_bert, tmp_path))
    check(build_graph(load_experiment(path)), tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_run_without_the_command_line_checks_too(tiny_bert: Path, tmp_path: Path) -> None:
    content = content_of(tiny_bert, tmp_path)
    tasks(classes, test={"kind": "given"})(content, tmp_path)
    with pytest.raises(InputError, match="has no test examples"):
        run_serially(write(tmp_path, content), tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_writable(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for home in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link" / "below"):
        with pytest.raises(InputError, match="is not a folder"):
            require_writable(home)
    with pytest.raises(
        InputError, match="cannot be written to '/proc/home': /proc may not be written to"
    ):
        require_writable(Path("/proc/home"))

    def refuse(**_: Any) -> None:  # root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(InputError, match=f"{tmp_path} may not be written to .Permission denied"):
        require_writable(tmp_path / "a")
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link"}
