"""Runs at a scheduler and workers that people start by hand: several, late ones, and some that differ."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prefect import flow
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.store import all_stores
from tests.flows.engine.plain_dask import ROOT, PlainDask, documented
from tests.flows.engine.runs_in_workers import COMMAND, Run, content, drafts, n_segments
from tests.flows.engine.sums import backbone_total, total

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
WORKER = "dask worker tcp://127.0.0.1:8786 --nthreads 1"
COMMIT = "0123456789abcdef" * 2 + "01234567"
"""Of a model in the hub's cache."""


def by_worker(home: Path) -> tuple[Counter[str], Counter[str]]:
    """Names of the workers of segments, and of fits."""
    segments = Counter(
        read_receipt(store.root, number, "span").provenance["worker"]
        for store in all_stores(home)
        for number in store.segments()
    )
    manifests = ArtifactStore(home).all()
    return segments, Counter(m.provenance["worker"] for m in manifests if m.spec.stage == "fit")


@flow(name="resources")
def workers_of_sums(scheduler: str, home: Path) -> dict[str, str]:
    """Names of the workers of nodes that run the backbone, and of one that does not."""
    graph = Graph([*(backbone_total(f"backbone {n}", n) for n in range(6)), total("sum", 7)])
    context = RunContext(home, RunRuntime())
    with Display(Console(stderr=True)) as display:
        DaskEngine(Dask(scheduler), 2).run(graph, context, display)
    return {n.label: context.artifacts.manifest(n.ref).provenance["worker"] for n in graph}


@pytest.mark.night
@pytest.mark.usefixtures("prefect_server")
def test_documented_workers_serve_several_runs_and_gpus_get_the_backbone(
    start: Callable[..., Run], finished: Path, plain: PlainDask, tmp_path: Path
) -> None:
    scheduler, *workers, command = documented()
    assert scheduler.startswith("dask scheduler ")
    names = ["gpu0", "gpu1", "others"]
    for name, line in zip(names, workers, strict=True):
        # Two of those four are enough here.
        plain.start(name, line.replace("--nworkers 4", "--nworkers 2"))
    engine = command.split("--engine ")[1].replace("tcp://127.0.0.1:8786", plain.address)
    expected = content(finished / "home")
    both = [start(engine, COMMAND, tmp_path / name) for name in ("first", "second")]
    for run in both:
        run.end()
    of_fits = set[str]()
    for run in both:
        assert content(run.home) == expected
        assert drafts(run.home) == []
        assert "Traceback" not in run.said()
        segments, fits = by_worker(run.home)
        assert segments.keys() <= {"gpu0", "gpu1"}
        assert segments.total() == n_segments(run.home)
        of_fits |= fits.keys()
    assert of_fits & {"others-0", "others-1"}, "who has no GPU is not idle"
    of_sums = workers_of_sums(plain.address, tmp_path / "sums")
    assert len(of_sums) == 7
    assert {w for label, w in of_sums.items() if label != "sum"} <= {"gpu0", "gpu1"}


def computed_by(home: Path) -> set[str]:
    """Names of the workers of what is no extraction."""
    manifests = ArtifactStore(home).all()
    return {m.provenance["worker"] for m in manifests if "worker" in m.provenance}


@pytest.mark.night
def test_a_worker_that_joins_late_computes_the_same_bytes(
    start: Callable[..., Run], finished: Path, plain: PlainDask
) -> None:
    plain.start("first", WORKER)
    run = start(f"dask={plain.address}", COMMAND)
    run.until(lambda: n_segments(run.home) > 2)
    with run.held_still():
        assert n_segments(run.home) < n_segments(finished / "home") - 4
        plain.start("late", WORKER)
        plain.wait_for("late", "Registered to:")
    run.end()
    assert content(run.home) == content(finished / "home")
    assert drafts(run.home) == []
    segments, _ = by_worker(run.home)
    assert segments.keys() == {"first", "late"}
    assert segments.total() == n_segments(run.home)


def edited_copy(folder: Path) -> dict[str, str]:
    """The environment of a worker with another version of the code."""
    shutil.copytree(ROOT / "permafrost", folder / "permafrost")
    with (folder / "permafrost" / "flows" / "graph.py").open("a") as source:
        source.write("# another version\n")
    return {"PYTHONPATH": str(folder)}


def older_torch(folder: Path) -> dict[str, str]:
    """The environment of a worker with another torch, as the installed packages say."""
    about = folder / "torch-2.1.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def hub_cache(folder: Path, model: Path) -> dict[str, str]:
    """The environment of a process that finds `model` as tiny/bert in the hub's cache of its machine."""
    repository = folder / "hub" / "models--tiny--bert"
    shutil.copytree(model, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}


def refused(name: str, problem: str) -> str:
    end = "It gets nothing of this run; start it in the same environment, with the same files"
    return rf"refused the Dask worker {name} \(tcp://127\.0\.0\.1:\d+\)( on \S+)?: it {problem}\. {end}"


CODE = "has permafrost's code [0-9a-f]{12} where this process has [0-9a-f]{12}"
TORCH = r"has torch 2\.1\.0 where this process has 2\.\d+\.\d+"
FILES = "finds a backbone of weights_digest '[0-9a-f]+' where this process has '[0-9a-f]+'"


@pytest.mark.night
def test_a_run_of_which_all_workers_differ_ends_with_their_names(
    start: Callable[..., Run], plain: PlainDask, tmp_path: Path
) -> None:
    plain.start("edited", WORKER, edited_copy(tmp_path / "edited"))
    plain.start("older", WORKER, older_torch(tmp_path / "older"))
    for name in ("edited", "older"):
        plain.wait_for(name, "Registered to:")
    run = start(f"dask={plain.address}", COMMAND)
    run.process.communicate(timeout=600)
    assert run.process.returncode == 1, run.said()
    for name, problem in (("edited", CODE), ("older", TORCH)):
        assert re.search(refused(name, problem), run.said()), run.said()
        assert re.search(rf"error: no Dask worker can .+{name} \(tcp://\S+ {problem}", run.said())
    assert n_segments(run.home) == 0


def test_workers_that_differ_get_nothing_and_the_run_goes_on_with_the_others(
    start: Callable[..., Run], finished: Path, tiny_bert: Path, plain: PlainDask, tmp_path: Path
) -> None:
    ours = hub_cache(tmp_path / "ours", tiny_bert)
    theirs = hub_cache(tmp_path / "theirs", tiny_bert)
    weights = next((tmp_path / "theirs").rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x17")
    fields = yaml.safe_load((finished / "experiment.yaml").read_text())
    fields["backbone"] = {"source": "tiny/bert"}
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(fields))
    plain.start("good", WORKER, ours)
    run = start(f"dask={plain.address}", COMMAND, environment=ours)
    run.until(lambda: n_segments(run.home) > 2)
    # They join in the middle.
    with run.held_still():
        assert n_segments(run.home) < n_segments(finished / "home") - 4
        plain.start("edited", WORKER, ours | edited_copy(tmp_path / "edited"))
        plain.start("older", WORKER, ours | older_torch(tmp_path / "older"))
        plain.start("files", WORKER, theirs)
        for name in ("edited", "older", "files"):
            plain.wait_for(name, "Registered to:")
    for name, problem in (("edited", CODE), ("older", TORCH), ("files", FILES)):
        run.until(lambda n=name, p=problem: re.search(refused(n, p), run.said()))
    # The only one that is like us is lost.
    run.until(lambda: list(run.home.glob("artifacts/fit/[!.]*/artifact.json")))
    plain.kill("good")
    run.until(lambda: f"waiting for one to join {plain.address}" in run.said())
    plain.start("late", WORKER, ours)
    run.end()
    assert content(run.home) == content(finished / "home")
    assert drafts(run.home) == []
    segments, _ = by_worker(run.home)
    assert segments.keys() == {"good"}
    assert computed_by(run.home) == {"good", "late"}
