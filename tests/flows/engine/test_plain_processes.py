"""Runs at a scheduler and workers that people start by hand."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect import flow
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.choice import Dask
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.graph import Graph
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.store import all_stores
from tests.flows.engine.plain_dask import PlainDask, documented
from tests.flows.engine.runs_in_workers import COMMAND, Run, content, drafts, n_segments
from tests.flows.engine.sums import backbone_total, total

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]


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
    first = start(engine, COMMAND, tmp_path / "first")
    first.end()
    both = [start(engine, COMMAND, tmp_path / name) for name in ("second", "third")]
    for run in both:
        run.end()
    of_fits = set[str]()
    for run in (first, *both):
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
