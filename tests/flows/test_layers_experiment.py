"""An experiment of FREEZE!'s heads: autoencoders once, pair heads on the latents of every layer."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import permafrost
from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.nodes import resuming
from permafrost.flows.nodes.latents import latents
from permafrost.flows.nodes.pretraining import MEASURED_ON
from permafrost.flows.nodes.report_writing import extractions, pretraining_runs, report_cells
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.flows.stage import stage_of
from permafrost.stages.freeze import load_autoencoders, load_pair_fit
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.learning import learning_curves
from permafrost.stages.report.pretraining import read_pretrainings
from permafrost.storage.artifacts import Draft
from permafrost.storage.durable import read_json
from tests.flows.experiments import run_in
from tests.flows.layers_experiments import experiment, written
from tests.flows.looked import look
from tests.flows.scored_answers import answers_as_scored
from tests.stages.fit.test_fit_checkpoint import _Counts, _Stop, _StopsAfter
from tests.stages.report.test_report import Page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return written(tmp_path_factory.mktemp("freeze"))


@pytest.fixture(scope="module")
def first_run(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(files))


@pytest.mark.deep
def test_pretraining_runs_once_and_is_used_by_the_heads_that_name_it(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    assert result.computed == {
        "corpus": 2,
        "extract": 2,
        "pretrain": 1,
        "fit": 6,
        "score": 6,
        "report": 1,
    }
    dag = look(path, home)
    encoders = str(dag.nodes.pretrainings["encoders"].spec.ref)
    for (name, _, _), node in dag.nodes.fits.items():
        assert (encoders in node.spec.inputs) == (name == "pretrained")
    trained, fresh = (
        load_pair_fit(dag.artifacts.open(dag.nodes.fits[name, "pairs", 0].spec.ref)).state
        for name in ("pretrained", "from scratch")
    )
    assert trained.keys() == fresh.keys()
    assert any(not torch.equal(trained[k], fresh[k]) for k in trained), "same seed, same start"


@pytest.mark.parametrize(
    "method", ["cosine MLP", pytest.param("pretrained", marks=pytest.mark.deep)]
)
def test_pairs_are_answered_as_they_were_scored(
    first_run: tuple[Path, Path, PipelineResult], method: str
) -> None:
    path, home, _ = first_run
    dag, cell = look(path, home), (method, "pairs", 1)
    head, scored = (n[cell].spec.ref for n in (dag.nodes.fits, dag.nodes.scores))
    given = home, str(head), dag.artifacts.open(scored), dag.corpus("pairs")
    assert answers_as_scored(*given) == 1
    found = permafrost.predict(["ice"], ["snow melts"], head=str(head), home=home, device="cpu")
    assert isinstance(found, permafrost.PredictedScores)
    assert found.scores == pytest.approx(5 * found.similarities)


def test_a_killed_fit_and_a_killed_pretraining_go_on_from_their_checkpoints(
    first_run: tuple[Path, Path, PipelineResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "CHECKPOINT_EVERY_S", 0.0)
    path, home, _ = first_run
    dag, context = look(path, home), RunContext(home, RunRuntime(device="cpu"))
    nodes = (dag.nodes.pretrainings["encoders"], dag.nodes.fits["pretrained", "pairs", 0])
    for node, step, n_left in zip(nodes, (9, 10), (4, 3), strict=True):
        stage, drafts = stage_of(node), [Draft(tmp_path / node.stage / n) for n in ("1", "2")]
        for draft in drafts:
            draft.folder.mkdir(parents=True)
        with pytest.raises(_Stop):
            stage.run(node, context, drafts[0], _StopsAfter(step))
        kept = list((home / "artifacts" / node.stage).glob(f".draft-{node.spec.ref.key}*/fit.pt"))
        assert len(kept) == 1
        counts = _Counts()
        stage.run(node, context, drafts[1], counts)
        assert counts.steps == n_left
        # It is there until the artifact is published, which it was here before.
        shutil.rmtree(kept[0].parent)
        published = dag.artifacts.open(node.spec.ref)
        for file in drafts[1].folder.iterdir():
            assert file.read_bytes() == (published / file.name).read_bytes(), file.name


def test_scores_tell_the_clean_part_of_test(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    corpus = dag.corpus("pairs")
    sides = ("text", "text_pair")
    seen = {t for side in sides for t in corpus.split("train").column(side).to_pylist()}
    test = [corpus.split("test").column(side).to_pylist() for side in sides]
    clean = sum(a not in seen and b not in seen for a, b in zip(*test, strict=True))
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    assert len(rows) == 6
    for node in dag.nodes.scores.values():
        metrics = read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")
        assert metrics["n_clean_test"] == clean
        for split in ("dev", "test"):
            assert {f"{split}_pearson", f"{split}_spearman"} <= metrics.keys()
        assert -1 <= metrics["test_pearson"] <= 1


def test_scores_tell_what_a_text_and_itself_are_given(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    for cell in (("cosine MLP", "pairs", 0), ("pretrained", "pairs", 1)):
        metrics = read_json(dag.artifacts.open(dag.nodes.scores[cell].spec.ref) / "metrics.json")
        result = load_pair_fit(dag.artifacts.open(dag.nodes.fits[cell].spec.ref))
        head = result.head()
        x = torch.randn(3, result.n_layers, result.d_model)
        assert head(x, x).tolist() == pytest.approx([metrics["self_similarity"]] * 3, abs=1e-6)


def test_the_report_shows_how_encoders_and_heads_were_trained(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    cells = read_results(report_cells(dag.nodes.report, dag.context))
    curves = learning_curves(cells)
    assert [(c.method, c.loss, len(c.runs)) for c in curves] == [
        (name, "log_variance", 2) for name in ("cosine MLP", "from scratch", "pretrained")
    ]
    kept = {(c.method, run.seed): run.kept for c in curves for run in c.runs}
    assert kept == {(r.cell.method, r.cell.seed): r.metrics.choice["epoch"] for r in cells}
    for curve in curves:
        assert curve.series("train_loss").epochs.tolist() == [1, 2, 3, 4]
        assert curve.series("dev_metric").epochs.tolist() == [2, 4]
    (run,) = pretraining_runs(dag.nodes.report, dag.context)
    assert run.layers == ("1", "2", "3")
    (pretraining,) = read_pretrainings([run])
    assert pretraining.epochs.tolist() == [1, 2, 3]
    page = Page(result.report)
    late = pretraining.depths[-1]
    assert f"{late.train_mse[-1]:.4g}" in next(row for row in page.rows if row[0] == "late")
    assert {"href": "#pretraining"} in page.all("a")
    names = {p.name for p in (result.report.parent / "figures").iterdir()}
    assert {"learning_curves.png", "pretraining.png", "pretraining_elsewhere.png"} <= names


def test_encoders_are_measured_on_the_other_tasks_texts_but_their_own(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    node = dag.nodes.pretrainings["encoders"]
    x = torch.from_numpy(latents(node, dag.context, MEASURED_ON))
    texts, own = dag.corpus("pairs").texts, {*dag.corpus("generic").texts}
    assert len(x) == len(texts) != len(own)
    unseen = np.array([text not in own for text in texts])
    assert (~unseen).sum() == 1
    x = x[torch.from_numpy(unseen)]
    folder = dag.artifacts.open(node.spec.ref)
    assert read_json(folder / "autoencoders.json")["n_elsewhere"] == len(x)
    error_NL = (load_autoencoders(folder)(x) - x).square().mean(-1)
    errors = pq.read_table(folder / "elsewhere.parquet").to_pylist()
    found = {(row["epoch"], row["layer"]): row["mse"] for row in errors}
    best = read_json(folder / "autoencoders.json")["best"]
    for layer, (kept, error) in enumerate(zip(best, error_NL.mean(0).tolist(), strict=True)):
        assert found[kept["epoch"], layer] == pytest.approx(error, rel=1e-5)
    (run,) = pretraining_runs(dag.nodes.report, dag.context)
    assert run.elsewhere is not None
    assert run.elsewhere.task == "pairs"
    assert len(run.elsewhere.unexplained) == 3


def test_the_report_holds_the_named_method_against_the_grades(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    """FREEZE!, appendix 10: of the method that is named, whichever dev prefers."""
    path, home, result = first_run
    dag = look(path, home)
    scores = [
        dag.artifacts.open(dag.nodes.scores["pretrained", "pairs", s].spec.ref) for s in (0, 1)
    ]
    tables = [pq.read_table(folder / "predictions.parquet").to_pandas() for folder in scores]
    tests = [t[t["split"] == "test"] for t in tables]
    mean = sum((5 * t["prediction"] - t["label"]).mean() for t in tests) / 2
    itself = sum(read_json(folder / "metrics.json")["self_similarity"] for folder in scores) / 2
    rows = [row for row in Page(result.report).rows if row[:2] == ["pairs", "pretrained"]]
    shown = next(row for row in rows if row[5] == "40")
    assert shown[2] == f"{mean:.2f}".replace("-", "−")
    assert shown[4] == f"{5 * itself:.2f}"
    text = result.report.with_name("tables.md").read_text(encoding="utf-8")
    assert "pairs, pretrained: pairs by the absolute difference of prediction and grade" in text


def test_the_report_says_what_was_recorded_of_costs(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    seconds: list[float] = []
    for cell in report_cells(dag.nodes.report, dag.context):
        node = dag.nodes.fits[cell.method, cell.task, cell.seed]
        manifest = read_json(dag.artifacts.folder(node.spec.ref) / "artifact.json")
        seconds.append(manifest["provenance"]["seconds"])
        assert cell.costs.fit_seconds == seconds[-1] > 0
        assert cell.costs.score_seconds is not None
        assert cell.costs.n_pooling_parameters is None, "a pair head has no pooling"
    nodes = dag.nodes.extractions.values()
    found = extractions(dag.nodes.report, dag.context)
    assert len(found) == len(nodes) > 0
    for extraction, node in zip(found, nodes, strict=True):
        summary = dag.artifacts.manifest(node.ref).summary
        assert extraction.n_tokens == summary["n_tokens_computed"]
        row = next(row for row in Page(result.report).rows if row[0] == extraction.label)
        assert row[1] == f"{extraction.n_tokens:,}"


def test_a_change_of_one_head_leaves_the_pretraining_alone(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    again = run_serially(path, home)
    assert not again.computed
    changed = run_serially(path, home, ["methods.pretrained.loss=mse"])
    assert changed.computed == {"fit": 2, "score": 2, "report": 1}


def test_the_report_shows_what_test_would_have_chosen_and_does_not_choose_by_it(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    honest: list[float] = []
    best: list[float] = []
    for seed in (0, 1):
        cell = ("pretrained", "pairs", seed)
        folder = dag.artifacts.open(dag.nodes.fits[cell].spec.ref)
        by_epoch = pq.read_table(folder / "test_by_epoch.parquet").to_pydict()
        assert by_epoch["epoch"] == [2, 4]
        metrics = read_json(dag.artifacts.open(dag.nodes.scores[cell].spec.ref) / "metrics.json")
        kept = load_pair_fit(folder)
        evaluated = {e.epoch: e.dev_metric for e in kept.history if e.dev_metric is not None}
        assert kept.best.epoch == max(evaluated, key=lambda e: evaluated[e]), "dev chose"
        of = dict(zip(by_epoch["epoch"], by_epoch["test"], strict=True))
        assert of[kept.best.epoch] == pytest.approx(metrics["test"], abs=1e-9)
        honest.append(metrics["test"])
        best.append(max(by_epoch["test"]))
    other = dag.artifacts.open(dag.nodes.fits["from scratch", "pairs", 0].spec.ref)
    assert not (other / "test_by_epoch.parquet").exists()
    text = result.report.with_name("tables.md").read_text(encoding="utf-8")
    assert (
        "## Not a result: the highest test score of any evaluated epoch, which chose nothing"
        in text
    )
    numbers = [f"{100 * np.mean(v):.1f}".replace("-", "−") for v in (honest, best)]
    row = next(
        row for row in Page(result.report).rows if row[:4] == ["pairs", "pretrained", *numbers]
    )
    assert len(row) == 6
    results = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    assert [r["test"] for r in results if r["method"] == "pretrained"] == honest
    assert [(r["pearson"], r["spearman"]) for r in results] == [
        pytest.approx((m["test_pearson"], m["test_spearman"]), abs=1e-9)
        for r in results
        for m in [read_json(home / "artifacts" / r["key"] / "metrics.json")]
    ]


def test_a_head_on_shuffled_labels_is_a_control(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    control = ["methods.cosine MLP.labels=shuffled"]
    result = run_serially(path, home, control)
    assert result.computed == {"fit": 2, "score": 2, "report": 1}
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    roles = {(row["method"], row["role"]) for row in rows}
    assert roles == {
        ("cosine MLP", "control"),
        ("from scratch", "method"),
        ("pretrained", "method"),
    }
    assert ["cosine MLP control"] in [row[:1] for row in Page(result.report).rows]
    dag = look(path, home)
    for seed in (0, 1):
        config = dag.nodes.fits["cosine MLP", "pairs", seed].config
        assert "labels" not in config, "the key of a fit without a control is as it was"
