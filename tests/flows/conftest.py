"""A small real experiment on a tiny backbone, and one Prefect server for the session."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from flows.pipeline import pipeline
from tests.stages.extraction.tiny_models import save_model

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A temporary Prefect server and database."""
    with (
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random BERT."""
    return save_model("bert", tmp_path_factory.mktemp("backbone"))


def tiny_experiment(backbone: Path) -> dict[str, Any]:
    """Two tasks, three trained methods, two controls, two seeds."""
    dilution = {
        "kind": "dilution",
        "n_words": 20,
        "gap": 1,
        "n_train": 24,
        "n_dev": 8,
        "n_test": 12,
    }
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    return {
        "name": "tiny",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=1-2@tokens",
        "tasks": {
            "ratio 0.2": {**dilution, "ratio": 0.2, "seed": 1},
            "ratio 0.5": {**dilution, "ratio": 0.5, "seed": 2},
        },
        "methods": {
            "mean": {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/2", "optim": optim},
            "GLOT": {
                "kind": "head",
                "head": {"kind": "glot", "n_convs": 1, "hidden": 8, "tau": 0.3},
                "layer": "hidden/2",
                "optim": optim,
                "grid": {"layer": ["hidden/1", "hidden/2"]},
            },
            "shuffled": {
                "kind": "head",
                "head": {"kind": "scorer", "hidden": 8},
                "layer": "hidden/1",
                "optim": optim,
                "labels": "shuffled",
            },
            "length": {"kind": "length"},
            "words": {"kind": "bag_of_words"},
        },
        "seeds": [0, 1],
        "report": {
            "title": "A tiny experiment",
            "x_axis": {
                "kind": "curve",
                "label": "distractor ratio",
                "values": {"ratio 0.2": 0.2, "ratio 0.5": 0.5},
            },
        },
        "runtime": {"workers": 2, "extract": {"device": "cpu"}},
    }


@pytest.fixture
def experiment_file(tiny_bert: Path, tmp_path: Path) -> Path:
    """The tiny experiment as a file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert), sort_keys=False))
    return path


@pytest.fixture(scope="session")
def finished_home(
    prefect_server: None, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A home in which the tiny experiment has run once; copy it before changing it."""
    folder = tmp_path_factory.mktemp("finished")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert), sort_keys=False))
    pipeline(str(path), str(folder / "home"))
    return folder / "home"
