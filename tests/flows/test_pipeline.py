"""The whole DAG on a tiny backbone: it runs, reuses, and re-runs exactly what changed."""

import errno
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import permafrost
from permafrost.flows import build
from permafrost.flows.disk.garbage import collect
from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.experiment_nodes import ExperimentNodes
from permafrost.flows.graph import Node
from permafrost.flows.nodes.reporting import Report
from permafrost.flows.pipeline import pipeline, run_serially
from permafrost.flows.plan import why_stage
from permafrost.flows.rebuild_report import rebuild_report
from permafrost.flows.records.history import read_history
from permafrost.stages.extraction import backbone as loading
from permafrost.stages.extraction import computing
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.drafts import owner
from permafrost.storage.errors import InputError, NotFoundError, PermafrostError
from permafrost.storage.features.store import all_stores
from tests.flows.looked import Looked, look

pytestmark = pytest.mark.usefixtures("prefect_server")


class Backbones:
    """Counts backbone loads and forward passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads = self.forwards = 0
        load, forward = loading.load_backbone, computing.forward

        def counted_load(*args: object, **kwargs: object) -> object:
            self.loads += 1
            return load(*args, **kwargs)

        def counted_forward(*args: object, **kwargs: object) -> object:
            self.forwards += 1
            return forward(*args, **kwargs)

        monkeypatch.setattr(loading, "load_backbone", counted_load)
        monkeypatch.setattr(computing, "forward", counted_forward)


@pytest.fixture
def backbones(monkeypatch: pytest.MonkeyPatch) -> Backbones:
    return Backbones(monkeypatch)


@pytest.fixture
def home(finished_home: Path, tmp_path: Path) -> Path:
    """A copy of a home in which the tiny experiment has run once."""
    return shutil.copytree(finished_home, tmp_path / "home")


@pytest.mark.drawn
def test_first_run_computes_everything_once(
    experiment_file: Path, tmp_path: Path, backbones: Backbones
) -> None:
    result = pipeline(str(experiment_file), str(tmp_path / "home"))
    assert backbones.loads == 1
    assert backbones.forwards > 0
    assert result.computed == {
        "corpus": 2,
        "extract": 2,
        "fit": 16,
        "choose": 4,
        "control": 4,
        "score": 12,
        "report": 1,
    }
    assert not result.reused
    folder = result.report.parent
    table = pq.read_table(folder / "results.parquet")
    assert Counter(table.column("method").to_pylist()) == {
        "mean": 4,
        "GLOT": 4,
        "shuffled": 4,
        "length": 2,
        "words": 2,
    }
    assert "A tiny experiment" in result.report.read_text()
    assert (folder / "results.md").read_text().startswith("| method")
    assert list((folder / "figures").glob("*.png"))
    assert [str(c.header) for c in result.table().columns][1:] == [
        "ratio 0.2\naccuracy",
        "ratio 0.5\naccuracy",
    ]
    assert [str(cell) for cell in result.table().columns[0].cells][-2:] == [
        "majority class",
        "classes in test",
    ]


def test_second_run_computes_nothing(
    experiment_file: Path, home: Path, backbones: Backbones
) -> None:
    result = run_serially(experiment_file, home)
    assert not result.computed
    assert sum(result.reused.values()) == 41
    assert (backbones.loads, backbones.forwards) == (0, 0)


@pytest.mark.deep
def test_a_run_that_finds_everything_lays_its_graph_out_once_and_waits_for_nothing(
    experiment_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[object] = []
    waits: list[object] = []
    report_node = build.report_node

    def counted(nodes: ExperimentNodes) -> Node:
        graphs.append(nodes)
        return report_node(nodes)

    def start(cluster: Cluster) -> Any:
        raise AssertionError("nothing has to be computed")

    monkeypatch.setattr(build, "report_node", counted)
    monkeypatch.setattr(Cluster, "start", start)
    # As if the server were one that ends with the run.
    monkeypatch.setattr("permafrost.flows.pipeline.prefect_api", lambda: nullcontext(True))
    monkeypatch.setattr(
        "permafrost.flows.pipeline._wait_for_records", lambda *a: waits.append(a[1])
    )
    assert not permafrost.run(experiment_file, home=home, engine="dask").computed
    assert len(graphs) == 1
    assert not waits
    changed = ["report.title=Another"]
    assert permafrost.run(experiment_file, home=home, engine="prefect", overrides=changed).computed
    assert len(graphs) == 2
    assert waits == [41], "what was computed is recorded first"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("override", "computed"),
    [
        # Another value in a grid: the candidates with that value, what is chosen now, its scores, the report.
        (
            "methods.GLOT.grid={layer: [hidden/1, hidden/2], head.tau: [0.3, 0.5]}",
            {"fit": 8, "choose": 4, "score": 4, "report": 1},
        ),
        # A wider capture touches nothing downstream.
        ("capture=hidden=all@tokens", {"extract": 2}),
        pytest.param("report.title=Another", {"report": 1}, marks=pytest.mark.deep),
        ("runtime.workers=1", {}),
        pytest.param("seeds=[0]", {"report": 1}, marks=pytest.mark.deep),
        # One task's texts: its corpus, the extraction of the new texts, its fits.
        (
            "tasks.ratio 0.5.seed=3",
            {
                "corpus": 1,
                "extract": 1,
                "fit": 8,
                "choose": 2,
                "control": 2,
                "score": 6,
                "report": 1,
            },
        ),
    ],
)
def test_a_change_reruns_what_depends_on_it(
    experiment_file: Path, home: Path, override: str, computed: dict[str, int], backbones: Backbones
) -> None:
    result = run_serially(experiment_file, home, [override])
    assert result.computed == computed
    assert backbones.loads == (1 if "extract" in computed else 0)


def test_lost_features_are_computed_again_and_nothing_else(
    experiment_file: Path, home: Path, backbones: Backbones
) -> None:
    store = all_stores(home)[0]
    shutil.rmtree(store.root)
    result = run_serially(experiment_file, home)
    assert result.computed == {"extract": 2}
    assert backbones.loads == 1


@pytest.mark.deep
def test_same_seed_gives_the_same_results_in_another_home(
    experiment_file: Path, finished_home: Path, tmp_path: Path
) -> None:
    dag = look(experiment_file, finished_home)
    pipeline(str(experiment_file), str(tmp_path / "home"))
    other = ArtifactStore(tmp_path / "home")
    for node in dag.nodes.scores.values():
        here = (dag.artifacts.folder(node.spec.ref) / "metrics.json").read_text()
        assert (other.folder(node.spec.ref) / "metrics.json").read_text() == here


def test_failing_stage_fails_the_run_and_keeps_the_rest(
    experiment_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PermafrostError, match="loss") as caught:
        run_serially(
            experiment_file,
            tmp_path / "home",
            ["methods.shuffled.optim={lr: 1.0e+30, max_epochs: 3, batch_size: 4}"],
        )
    notes = " ".join(caught.value.__notes__)
    assert "3 more failed" in notes
    assert "while running 'fit shuffled" in notes
    kinds = Counter(
        m.spec.config["head"]["kind"] for m in ArtifactStore(tmp_path / "home").all("fit")
    )
    assert kinds == {"mean": 4, "glot": 8}
    artifacts = ArtifactStore(tmp_path / "home")
    assert sum(1 for _ in artifacts.all("score")) == 8, "what the failed fits do not stop is scored"
    assert "5 skipped, which depend on failed ones" in notes, "four scores and the report"
    assert not list(artifacts.all("report")), "published, a report with gaps would count as done"
    page = (tmp_path / "home" / "runs" / "unfinished" / "tiny" / "report.html").read_text()
    assert "Missing: score shuffled · ratio 0.2 · seed 0, which needs fit shuffled" in page
    assert "4 stages failed, 4 skipped" in page, "the page itself is no gap"
    assert "Missing: report" not in page
    assert "EXPERIMENT" not in page
    assert "<code>permafrost runs tiny</code>" in page
    assert str(tmp_path / "home" / "runs" / "unfinished" / "tiny" / "report.html") in notes
    assert collect(tmp_path / "home", []).folders == [], "gc keeps what an unfinished run made"
    (run,) = read_history(tmp_path / "home", "tiny").runs
    assert run.ended is not None
    assert (run.state, run.ended.failed) == ("failed", {"fit": 4})
    assert sum(run.ended.skipped.values()) == 5
    assert "loss" in (run.ended.error or "")
    assert {score.method for score in run.ended.results} == {"mean", "GLOT", "length", "words"}


def test_plan_says_what_will_run_and_writes_nothing(experiment_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    plan = look(experiment_file, home).plan()
    assert {r.stage: r.n_run for r in plan.rows} == {
        "corpus": 2,
        "extract": 2,
        "fit": 16,
        "choose": 4,
        "control": 4,
        "score": 12,
        "report": 1,
    }
    assert [r.why for r in plan.rows][:3] == [
        "new: no earlier corpus",
        "new: no earlier extraction (44 texts new each)",
        "new: no earlier fit",
    ]
    assert len(plan.rows) == 7, "one for all that is new of a stage"
    assert plan.seconds is None
    assert {str(t) for t in plan.times} == {"no estimate yet"}
    assert [e.n_new_texts for e in plan.extractions] == [88]
    assert plan.fits
    assert not home.exists()


def test_plan_and_why_name_the_changed_field(experiment_file: Path, home: Path) -> None:
    dag = look(experiment_file, home, ["methods.GLOT.head.tau=0.5"])
    plan = dag.plan()
    fits = [r for r in plan.rows if r.stage == "fit"]
    assert [(r.n_run, r.n_reuse, r.why) for r in fits] == [(8, 8, "GLOT: head.tau 0.3 -> 0.5")]
    assert [r.why for r in plan.rows if r.n_run] == [
        "GLOT: head.tau 0.3 -> 0.5",
        "because its fits changed",
        "because its fit changed",
        "because 4 of its scores changed",
    ]
    label, found = why_stage(dag.nodes, dag.home, "score")[0]
    assert label.startswith("score GLOT")
    assert found.headline == "because its fit changed: GLOT: head.tau 0.3 -> 0.5"
    fits_took = next(t for t in plan.times if t.stage == "fit")
    assert fits_took.seconds is not None
    assert fits_took.basis == "8 earlier on cpu by examples x epochs"
    assert plan.seconds == pytest.approx(sum(t.seconds or 0 for t in plan.times))


@pytest.mark.deep
def test_why_names_the_identity_field_of_another_store(experiment_file: Path, home: Path) -> None:
    changed = load_experiment(experiment_file, ["store_dtype=float32"])
    pipeline(str(experiment_file), str(home), ["store_dtype=float32", "seeds=[0]"])
    dag = Looked(changed.model_copy(update={"seeds": (1,)}), home)
    plan = dag.plan()
    assert all(e.nothing_to_do for e in plan.extractions)
    fits = [r for r in plan.rows if r.stage == "fit"]
    assert [r.why for r in fits] == ["because its features changed: store_dtype float16 -> float32"]


@pytest.mark.drawn
def test_report_is_rebuilt_from_results(experiment_file: Path, home: Path) -> None:
    dag = look(experiment_file, home)
    before = (dag.artifacts.folder(dag.nodes.report.spec.ref) / "report.html").read_text()
    path = rebuild_report(dag.nodes, home)
    assert path.read_text() == before


def test_a_report_that_cannot_be_rebuilt_stays(experiment_file: Path, home: Path) -> None:
    dag = look(experiment_file, home)
    page = dag.artifacts.folder(dag.nodes.report.ref) / "report.html"
    corpus = next(iter(dag.nodes.corpora.values()))
    before = page.read_text()
    dag.artifacts.remove(corpus.ref)
    with pytest.raises(NotFoundError, match=f"1 of .* inputs of the report .*{corpus.label}"):
        rebuild_report(dag.nodes, home)
    assert page.read_text() == before


def test_the_report_of_a_read_only_home_is_named(
    experiment_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(**_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    dag = look(experiment_file, home)
    page = dag.artifacts.folder(dag.nodes.report.ref) / "report.html"
    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(InputError, match=f"Read-only file system.*the one that is there is {page}"):
        rebuild_report(dag.nodes, home)


def test_a_report_whose_rebuilding_fails_stays(
    experiment_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("boom")

    dag = look(experiment_file, home)
    page = dag.artifacts.folder(dag.nodes.report.ref) / "report.html"
    before = page.read_text()
    monkeypatch.setattr(Report, "run", fail)
    with pytest.raises(OSError, match="boom"):
        rebuild_report(dag.nodes, home)
    assert page.read_text() == before


@pytest.mark.deep
def test_garbage_is_what_no_latest_run_used(experiment_file: Path, home: Path) -> None:
    assert collect(home, []).folders == []
    pipeline(str(experiment_file), str(home), ["methods.GLOT.head.tau=0.5"])
    garbage = collect(home, [])
    assert Counter(r.stage for r in garbage.refs) == {
        "fit": 8,
        "choose": 4,
        "score": 4,
        "report": 1,
    }
    kept = next(r for r in garbage.refs if r.stage == "score")
    spared = collect(home, [kept.key])
    assert Counter(r.stage for r in spared.refs) == {"fit": 6, "choose": 3, "score": 3, "report": 1}
    garbage.remove()
    assert not pipeline(str(experiment_file), str(home), ["methods.GLOT.head.tau=0.5"]).computed


def test_drafts_of_dead_writers_are_garbage(home: Path) -> None:
    (store,) = all_stores(home)
    place, pid, started = owner().split(".")
    dead = store.root / f".draft-segments-{place}.{pid}.{int(started) - 1}-0123abcd"
    living = store.root / f".draft-segments-{owner()}-0123abcd"
    (dead / "000000").mkdir(parents=True)
    living.mkdir()
    try:
        garbage = collect(home, [])
        assert garbage.folders == [dead]
        garbage.remove()
        assert not dead.exists()
        assert living.exists()
    finally:
        living.rmdir()


def test_garbage_collection_without_any_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no experiment has finished"):
        collect(tmp_path, [])


def test_method_on_an_array_that_is_not_captured_is_refused(
    experiment_file: Path, tmp_path: Path
) -> None:
    experiment = load_experiment(experiment_file, ["methods.mean.layer=hidden/3"])
    with pytest.raises(
        InputError, match=r"'mean' reads hidden/3.*captures only hidden/1, hidden/2"
    ):
        Looked(experiment, tmp_path)
