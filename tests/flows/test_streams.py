"""What a command prints to: encodings that lack characters, and readers that go away."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from permafrost.flows import streams
from permafrost.flows.terminal import Terminal, echo


@pytest.fixture
def without_reader() -> Iterator[TextIO]:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        yield stream


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "61.5 +/- 0.7 ~ -3 x \\u5317"),
        ("latin-1", "61.5 ± 0.7 ~ -3 × \\u5317"),
        ("utf-8", "61.5 ± 0.7 ≈ −3 × 北"),
    ],
)
def test_a_character_that_a_stream_lacks_is_shown_by_others(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    streams.print_any_character()
    echo("61.5 ± 0.7 ≈ −3 × 北")
    assert written.getvalue().decode(encoding) == f"{shown}\n"


def test_a_table_outlives_the_reader_of_the_output(without_reader: TextIO):
    terminal = Terminal(file=without_reader)
    terminal.print("a table")
    terminal.print("and what follows")
    without_reader.write("or is written by others\n")
    without_reader.flush()
    assert os.fstat(without_reader.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def test_lines_outlive_the_reader_of_the_output(
    monkeypatch: pytest.MonkeyPatch, without_reader: TextIO
):
    monkeypatch.setattr(sys, "stdout", without_reader)
    for line in ("a", "b"):
        echo(line)
    assert os.fstat(without_reader.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def test_a_disk_that_fails_is_no_reader_that_has_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Failing(io.TextIOWrapper):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    with (tmp_path / "out.txt").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", Failing(file))
        for write in (echo, Terminal().print):
            with pytest.raises(OSError, match="Input/output error"):
                write("a line")


def test_a_command_ends_well_where_there_is_no_output():
    done = subprocess.run(
        [sys.executable, "-m", "permafrost", "demo"],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "permafrost", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout[0].isdigit()
