"""Whole experiments on a GPU: heads, FREEZE! and probes run there and say what the CPU says."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.pipeline import PipelineResult
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import rows_of, run_in
from tests.flows.test_layers_experiment import experiment as freeze
from tests.flows.test_layers_experiment import files as freeze_files
from tests.flows.test_token_probes import experiment as token_probes
from tests.flows.test_token_probes import files as token_files
from tests.gpu.devices import checked_device
from tests.stages.extraction.tiny_models import save_model

DEVICE = checked_device()
pytestmark = pytest.mark.usefixtures("prefect_server")
__all__ = ["freeze_files", "token_files"]


def on_both(content: dict[str, Any], folder: Path) -> list[PipelineResult]:
    """The experiment on the device and on the CPU, each in a home of its own."""
    found: list[PipelineResult] = []
    for name, device in (("device", DEVICE), ("cpu", "cpu")):
        runtime = {"workers": 2, "device": device, "extract": {"device": device}}
        (folder / name).mkdir()
        found.append(run_in(folder / name, content | {"runtime": runtime})[2])
    return found


def scores(result: PipelineResult) -> dict[tuple[str, str, int], float]:
    """Test scores by method, task and seed."""
    return {(r["method"], r["task"], r["seed"]): r["test"] for r in rows_of(result)}


def test_heads_score_as_on_the_cpu(tmp_path: Path) -> None:
    device, cpu = on_both(tiny_experiment(save_model("bert", tmp_path / "bert")), tmp_path)
    assert device.computed == cpu.computed
    # One of twelve test texts may be a near tie.
    assert scores(device) == pytest.approx(scores(cpu), abs=1.01 / 12)


def test_freeze_scores_as_on_the_cpu(freeze_files: dict[str, str], tmp_path: Path) -> None:
    content = freeze(freeze_files)
    for head in (m["head"] for m in content["methods"].values() if "encoders" in m["head"]):
        # The masks of dropout differ between kinds of device.
        head |= {"dropout": 0.0, "encoders": {**head["encoders"], "dropout": 0.0}}
    content["pretrainings"]["encoders"]["autoencoder"]["encoders"]["dropout"] = 0.0
    device, cpu = on_both(content, tmp_path)
    assert scores(device) == pytest.approx(scores(cpu), abs=0.02)


def test_probes_find_what_they_find_on_the_cpu(token_files: dict[str, str], tmp_path: Path) -> None:
    device, cpu = on_both(token_probes(token_files), tmp_path)
    curves = [
        pq.read_table(r.report.with_name("probes.parquet")).to_pylist() for r in (device, cpu)
    ]
    where = [[(r["probe"], r["method"], r["measure"], r["x"]) for r in rows] for rows in curves]
    assert where[0] == where[1]
    values = [[r["value"] for r in rows] for rows in curves]
    assert values[0] == pytest.approx(values[1], rel=0.02, abs=0.02)
