"""Whole experiments in Dask workers: from a script, with the results of one process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from permafrost.flows.runs import read_run, run_path
from permafrost.storage.artifacts import ArtifactStore
from tests.flows.conftest import tiny_experiment

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, permafrost

print("this module runs once", flush=True)
result = permafrost.run(sys.argv[1], home=sys.argv[2], engine="dask")
print(dict(result.computed))
"""


def payloads(home: Path) -> dict[str, str]:
    """Checksums of every file of every artifact but reports, which name seconds."""
    return {
        f"{m.ref}/{name}": record.sha256
        for m in ArtifactStore(home).all()
        if m.spec.stage != "report"
        for name, record in m.files.items()
    }


def test_a_plain_script_runs_in_workers_and_gets_what_one_process_gets(
    tiny_bert: Path, finished_home: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = tiny_experiment(tiny_bert)
    experiment, script = tmp_path / "tiny.yaml", tmp_path / "script.py"
    experiment.write_text(yaml.safe_dump(fields, sort_keys=False))
    script.write_text(SCRIPT)  # no main guard
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, script, experiment, home],
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this module runs once") == 1
    assert payloads(home) == payloads(finished_home)
    record = read_run(run_path(home, "tiny"))
    assert (record.engine, record.workers, record.threads) == ("dask", 2, (1,))
    assert "2 Dask workers of 1 thread each; dashboard http://127.0.0.1:" in done.stderr
    assert "memory of 2 Dask workers at its peak: " in done.stderr
