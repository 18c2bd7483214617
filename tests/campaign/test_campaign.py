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
SMALL = {
    "kills": 2,
    "full": 1,
    "forbidden": 1,
    "writers": 4,
    "clock": 1,
    "damage": 1,
    "formats": 10,
}
"""Each with the number that is counted of it; workers that are killed have `tests/flows/engine`."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With the homes that are made first; not below pytest's own, whose names are long."""
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


def campaign(folder: Path, fault: str, n: int) -> list[dict[str, Any]]:
    """Run it; returns its log."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.campaign", "--seed", "7"]
    done = subprocess.run(
        [*program, "--only", fault, "--n", str(n), "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    log = folder / "log.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    found = [entry for entry in entries if entry["fault"] == fault]
    failures = [entry["failure"] for entry in found if entry["failure"] is not None]
    assert done.returncode == 0, "\n".join([*failures, done.stderr[-2000:]])
    return found


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", SMALL)
def test_a_small_campaign_finds_nothing(folder: Path, fault: str) -> None:
    found = campaign(folder, fault, SMALL[fault])
    counts = Counter[str]()
    for entry in found:
        assert entry["failure"] is None
        counts.update(entry["counts"])
    assert max(counts.values()) >= SMALL[fault], counts
    if fault == "clock":
        # All is in the log: the same command has nothing to do.
        assert campaign(folder, fault, SMALL[fault]) == found
