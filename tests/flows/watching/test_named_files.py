"""The files that an experiment names are found whatever names them, and seen to change."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.watching.named_files import stamps
from tests.flows.watching.test_news import experiment, rows, to_jsonl


def sources(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        "file": {"kind": "files", "files": {"train": str(folder / "part-0.jsonl")}},
        "pattern": {"kind": "files", "files": {"train": str(folder / "part-*.jsonl")}},
        "folder": {"kind": "files", "files": {"train": str(folder)}},
        "dataset": {"kind": "hub", "path": str(folder), "splits": {"train": "train"}},
    }


@pytest.mark.parametrize("kind", sources(Path()))
def test_a_file_that_is_written_to_has_another_stamp(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data" / "part-0.jsonl"
    data.parent.mkdir()
    to_jsonl(data, rows(0, 3))
    document = experiment(Path("tiny"), sources(data.parent)[kind])
    before = stamps(document)
    assert [path for path, _ in before] == [str(data)]
    assert stamps(document) == before
    # What stands there need not be readable.
    with data.open("a") as file:
        file.write('{"text": ')
    assert (after := stamps(document)) != before
    # Also one that is given the time that it had.
    was = data.stat().st_mtime_ns
    data.write_bytes(data.read_bytes()[::-1])
    os.utime(data, ns=(was, was))
    assert stamps(document) != after
    data.unlink()
    assert stamps(document) == frozenset()


def test_an_experiment_that_cannot_be_read_has_its_own_stamp(tmp_path: Path) -> None:
    file = tmp_path / "reviews.yaml"
    document = experiment(Path("tiny"), sources(tmp_path)["file"])
    file.write_text(yaml.safe_dump(document))
    whole = stamps(str(file))
    file.write_text("tasks: {")
    ((path, _),) = broken = stamps(str(file))
    assert path == str(file)
    assert broken != whole
    assert stamps(document, ["no.such=field"]) == frozenset()
