"""The campaign of `make campaign`, in small, as a program of its own: who forks has one thread."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = ("kills", "full", "writers", "clock", "damage", "formats")
"""Workers that are killed have `tests/flows/engine`; lost rights are full disks with another error."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, whose names are long."""
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


def campaign(folder: Path) -> list[dict[str, Any]]:
    """One trial of each fault, in one program; returns its log."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.campaign", "--seed", "7"]
    done = subprocess.run(
        [*program, "--n", "1", "--contents", "10", "--only", *FAULTS, "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    log = folder / "log.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    failures = [entry["failure"] for entry in entries if entry["failure"] is not None]
    assert done.returncode == 0, "\n".join([*failures, done.stderr[-2000:]])
    return entries


@pytest.mark.night
@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_small_campaign_finds_nothing_and_goes_on_where_it_was(folder: Path) -> None:
    found = campaign(folder)
    counts = {fault: Counter[str]() for fault in FAULTS}
    for entry in found:
        assert entry["failure"] is None
        counts[entry["fault"]].update(entry["counts"])
    for fault in FAULTS:
        assert max(counts[fault].values()) >= 1, counts
    # All is in the log: the same command has nothing to do.
    assert campaign(folder) == found
