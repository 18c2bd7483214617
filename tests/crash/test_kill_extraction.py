"""SIGKILL at random points of an extraction: nothing committed is lost or wrong, nothing is redone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages.extraction.tiny_models import save_model

MANY = int(os.environ.get("PERMAFROST_KILLS", "24"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("n_kills", "kill_share"),
    [
        (2, "none"),
        pytest.param(MANY, "none", marks=[pytest.mark.deep, pytest.mark.night]),
        # Left half-way by a worker in tests/stages/extraction/test_segment_pool.py too, without processes.
        pytest.param(MANY // 4, "0.3", marks=pytest.mark.deep),
    ],
    ids=["process", "process, many", "workers, many"],
)
def test_killed_extractions_lose_nothing_and_redo_nothing(
    tmp_path: Path, n_kills: int, kill_share: str
) -> None:
    model = save_model("bert", tmp_path / "model")
    script = Path(__file__).with_name("kill_extraction.py")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            str(model),
            str(tmp_path / "work"),
            str(n_kills),
            "20",
            kill_share,
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["kills"] >= n_kills
    assert counts["rows_compared"] > 1000 * n_kills / 10
    assert counts["cells_kept"] > n_kills
    assert counts["reruns_checked"] >= n_kills // 20
