"""A home that does not exist is no empty home: what reads it ends with 2, and makes nothing."""

from pathlib import Path

import pytest

from tests.flows.test_cli import Cli

READING = [
    ("ls",),
    ("show", "3f"),
    ("why", "fit"),
    ("du",),
    ("verify",),
    ("repair", "3f"),
    ("gc",),
    ("runs",),
    ("pin", "mine@1"),
    ("unpin", "mine@1"),
    ("compare", "mine@1", "mine@2"),
    ("across", "mine@1", "other@1"),
    ("statistics", "3f"),
    ("export", "fit/3f", "-o", "folder"),
    ("predict", "texts.txt", "--head", "fit/3f", "-o", "answers.csv"),
    ("embed", "texts.txt", "--head", "fit/3f", "-o", "vectors.parquet"),
]


@pytest.mark.parametrize("command", READING, ids=lambda c: c[0])
def test_reading_where_no_home_is_fails(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(tmp_path / "home", capsys)
    said = cli(*command, code=2)
    assert f"there is no home in {tmp_path / 'home'} (no such folder); name one with --home" in said
    assert not cli.home.exists()
    (tmp_path / ".permafrost" / "runs").mkdir(parents=True)
    said = Cli(tmp_path, capsys)(*command, code=2)
    assert (
        f"none of features, artifacts, runs); name one with --home or PERMAFROST_HOME, such as {tmp_path}"
        in said
    )


def test_verifying_nothing_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "artifacts").mkdir(parents=True)
    assert "there is nothing to verify" in Cli(tmp_path / "home", capsys)("verify", code=2)
