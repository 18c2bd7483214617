"""A small real experiment on a tiny backbone, and one Prefect server for each test process."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    temporary_settings,
)

from permafrost.flows.pipeline import run_serially
from permafrost.flows.server import process
from tests.stages.extraction.tiny_models import save_model
from tests.undrawn import undrawn as undrawn

MadeOnce = Callable[[str, Callable[[Path], object]], Path]

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> MadeOnce:
    """Makes a folder in the first test process that asks for it; the others wait and share it."""
    mine = tmp_path_factory.getbasetemp()
    shared = mine if worker_id == "master" else mine.parent

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (done := shared / f"{name}.done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


def _database(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


def _start_server(folder: Path) -> None:
    """A server that ends when this process does, and nobody has `alive` open for writing any more."""
    (folder / "address").touch()
    os.mkfifo(folder / "alive")
    os.open(folder / "alive", os.O_RDWR)  # never closed: this process needs it to its end
    # By a shell that does not wait: it is no child of this process, which it outlives for a moment.
    subprocess.run(
        ["sh", "-c", '"$0" -P "$1" <alive >address &', sys.executable, process.__file__],
        cwd=folder,
        env={**os.environ, "PREFECT_SERVER_DATABASE_CONNECTION_URL": _database(folder)},
        start_new_session=True,
        check=True,
    )
    deadline = time.monotonic() + 240
    while not (folder / "address").read_text().endswith("\n"):
        assert time.monotonic() < deadline, "Prefect's server has not started"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary Prefect server and database of this process alone: three processes on one SQLite database
    were once answered 503 on a loaded machine."""
    folder = tmp_path_factory.mktemp("prefect")
    _start_server(folder)
    here = {
        PREFECT_API_URL: (folder / "address").read_text().strip(),
        PREFECT_SERVER_DATABASE_CONNECTION_URL: _database(folder),
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(here):
        yield


@pytest.fixture(scope="session")
def tiny_bert(made_once: MadeOnce) -> Path:
    """Folder of a tiny random BERT; read only."""
    return made_once("tiny_bert", partial(save_model, "bert"))


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
def finished_home(tiny_bert: Path, made_once: MadeOnce) -> Path:
    """A home in which the tiny experiment has run once; copy it before changing it."""

    def run(folder: Path) -> None:
        path = folder / "tiny.yaml"
        path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert), sort_keys=False))
        run_serially(path, folder / "home")

    return made_once("finished", run) / "home"


@pytest.fixture(scope="module")
def dead() -> str:
    """A process of this machine that has ended."""
    code = "from permafrost.storage.drafts import owner; print(owner())"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
