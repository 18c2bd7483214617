"""Evaluations in an experiment: methods and heads on tasks of mteb, from one store."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.flows.rebuild_report import rebuild_report
from permafrost.flows.records.runs import gaps_folder
from permafrost.stages.extraction import backbone as loading
from permafrost.stages.extraction import computing
from permafrost.stages.mteb_evaluation import EVALUATION_TASKS
from permafrost.stages.mteb_evaluation.tasks.sts import StsTask
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.store import FeatureStore, all_stores, store_folder
from tests.flows.experiments import rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.small_evaluations import EVALUATED, experiment, write_data

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
]

ROLES = {"head": "method", "shuffled": "control"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def first_run(
    folder: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(folder, tiny_bert))


def test_every_method_is_scored_on_every_task(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    _, home, result = first_run
    # Pairs, and texts of each role: one of sts, one of classification, two of retrieval. `asked` is `mean`
    # but for searches, so only there it runs.
    assert result.computed == {
        "corpus": 5,
        "extract": 6,
        "embed": 2,
        "fit": 2,
        "score": 4,
        "evaluate": 13,
        "report": 1,
    }
    found = {(r["method"], r["task"], r["seed"]): r for r in rows_of(result) if r["n_dev"] == 0}
    for task, metric, category in (
        ("sts", "cosine_spearman", "STS"),
        ("classification", "accuracy", "Classification"),
        ("retrieval", "ndcg_at_10", "Retrieval"),
    ):
        for method in EVALUATED:
            for seed in (0, 1) if method == "head" else (0,):
                row = found.pop((method, task, seed))
                assert (row["metric"], row["category"]) == (metric, category)
                assert -1 <= row["test"] <= 1
                assert row["dev"] is None
                assert (row["n_parameters"] > 0) == (method == "head")
    assert not found
    summary = read_json(result.report.with_name("summary.json"))
    assert summary["averages"][-1] == {"heading": "mean", "metric": "mixed"}
    means = {r["method"]: r["averages"][-1]["text"] for r in summary["rows"]}
    tests = [row["test"] for row in rows_of(result) if row["method"] == "mean"]
    assert len(tests) == 4
    assert means["mean"] == f"{100 * np.mean(tests):.1f}"
    page = result.report.read_text(encoding="utf-8")
    assert "cosine_spearman" in page
    # Of the task with classes there is a map for every method, a vector without training or a trained head.
    section = page[page.index('id="maps"') :]
    assert "<summary>Map of classification</summary>" in section
    assert all(f"{method}: " in section for method in EVALUATED)
    assert len(all_stores(home)) == 2


def test_a_prompt_of_queries_changes_searches_only(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    rows = {(r["method"], r["task"]): r["test"] for r in rows_of(result) if r["seed"] == 0}
    for task in ("sts", "classification"):
        assert rows["mean", task] == rows["asked", task]
    dag = look(path, home)
    folders = {
        m: dag.artifacts.open(dag.nodes.evaluations[m, "retrieval", 0].spec.ref)
        for m in ("mean", "asked")
    }
    scores = {m: read_json(f / "scores.json")["test"][0] for m, f in folders.items()}
    assert scores["mean"] != scores["asked"]
    embeddings = {read_json(f / "metrics.json")["embedding"] for f in folders.values()}
    assert len(embeddings) == 2
    # The store of the prompt holds the queries, and no document.
    (target,) = dag.stores["question"].targets
    store = FeatureStore.open(store_folder(home, target.identity.store_id))
    asked = dag.corpus("retrieval · query of evaluation")
    stored = [
        text for s in store.segments() for text in store.segment(s).table.column("text").to_pylist()
    ]
    assert sorted(stored) == sorted(asked.texts)


def test_layers_and_heads_come_from_the_task_that_is_named(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    for name, seed, stage in (("VA auto", 0, "embed"), ("head", 1, "fit")):
        node = dag.nodes.evaluations[name, "sts", seed]
        made = dag.nodes.fits[name, "pairs", seed].spec.ref
        assert node.input("fitted").ref == str(made)
        assert made.stage == stage
    chosen = read_json(
        dag.artifacts.open(dag.nodes.fits["VA auto", "pairs", 0].spec.ref) / "vectors.json"
    )
    layers = ",".join(map(str, chosen["layers"]))
    fixed = [f"methods.VA={{kind: embed, method: va, layers: '{layers}'}}"]
    fixed.append("evaluations.mteb.methods=[VA]")
    again = run_serially(path, home, fixed)
    rows = {(r["method"], r["task"]): r["test"] for r in rows_of(again)}
    before = read_json(
        dag.artifacts.open(dag.nodes.evaluations["VA auto", "sts", 0].spec.ref) / "metrics.json"
    )
    assert rows["VA", "sts"] == before["test"]


def test_a_key_holds_the_code_of_mteb_tasks_and_of_the_method(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    mean, head = (dag.nodes.evaluations[m, "sts", 0].spec.code for m in ("mean", "head"))
    for code in (mean, head):
        assert code is not None
        assert "permafrost.stages.mteb_evaluation.build:build_task" in code
        assert "permafrost.stages.mteb_evaluation.encoder:PermafrostEncoder" in code
        tasks = {name for name in code if name.startswith(EVALUATION_TASKS.packages)}
        assert {name.rpartition(".")[2] for name in tasks} == {"sts:StsTask"}
    assert "permafrost.stages.embed.aggregations.mean:MeanRow" in mean
    assert "permafrost.stages.embed.head:embed_with_head" in head
    assert not any(name.startswith("permafrost.stages.extraction.extract:") for name in mean)


def test_a_key_holds_the_code_that_reads_what_a_stage_is_handed(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    fitted, scored, vectors = (
        nodes[method, "pairs", 0].spec.code
        for nodes, method in (
            (dag.nodes.fits, "head"),
            (dag.nodes.scores, "head"),
            (dag.nodes.fits, "mean"),
        )
    )
    evaluated = {m: dag.nodes.evaluations[m, "sts", 0].spec.code for m in EVALUATED}
    for code in (fitted, scored, vectors, dag.nodes.report.code, *evaluated.values()):
        assert code is not None
        assert "permafrost.storage.readers:open_reader" in code
    assert "permafrost.stages.fit.trained:load_head" in scored
    assert "permafrost.stages.fit.trained:load_head" in evaluated["head"]
    assert "permafrost.stages.embed.corpus:CorpusVectors" in evaluated["VA auto"]
    assert "permafrost.stages.corpus.overlap:texts_of_splits" in evaluated["head"]
    assert "permafrost.stages.embed.finish:finish" in evaluated["mean"]


def test_a_head_that_learnt_shuffled_labels_is_a_control_in_evaluations_as_well(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert) | {"seeds": [0]}
    head = content["methods"]["head"]
    content["methods"] = {"head": head, "shuffled": {**head, "labels": "shuffled"}}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["recipes"] = {}
    content["evaluations"]["mteb"] |= {
        "tasks": {"sts": tasks["sts"]},
        "methods": ["head", "shuffled"],
    }
    _, _, result = run_in(tmp_path, content)
    roles = {(r["method"], r["task"]): r["role"] for r in rows_of(result)}
    assert roles == {(m, t): r for m, r in ROLES.items() for t in ("pairs", "sts")}


def test_nothing_runs_twice_and_a_change_runs_what_it_touches(
    first_run: tuple[Path, Path, PipelineResult], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home, _ = first_run

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a backbone was loaded")

    monkeypatch.setattr(loading, "_load_model", refuse)
    assert not run_serially(path, home).computed
    more = ["evaluations.mteb.tasks.classification.samples_per_label=4"]
    changed = run_serially(path, home, more)
    # The rows that are drawn are others, but among those drawn before.
    assert changed.computed == {"corpus": 1, "extract": 1, "evaluate": 4, "report": 1}
    assert not look(path, home).plan().n_tokens


@pytest.mark.deep
@pytest.mark.drawn
def test_the_report_can_be_made_again(first_run: tuple[Path, Path, PipelineResult]) -> None:
    path, home, result = first_run
    before = result.report.read_bytes()
    assert rebuild_report(look(path, home).nodes, home) == result.report
    assert result.report.read_bytes() == before


def test_texts_of_the_hub_that_no_plan_knows_are_extracted_once_by_a_node_of_their_own(
    folder: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mteb.abstasks import AbsTaskSTS

    rows = pq.read_table(folder / "sts" / "test.parquet")
    n_texts = 0
    forward = computing.forward

    def counted(backbone: Any, encoded: Any, *rest: Any) -> Any:
        nonlocal n_texts
        n_texts += len(encoded)
        return forward(backbone, encoded, *rest)

    def from_files(self: Any, **_: Any) -> None:
        self.dataset = DatasetDict({"test": Dataset.from_dict(rows.to_pydict())})
        self.data_loaded = True

    monkeypatch.setattr(computing, "forward", counted)
    monkeypatch.setattr(AbsTaskSTS, "load_data", from_files)
    content = experiment(folder, tiny_bert)
    content["methods"] = {
        "mean": {"kind": "embed", "layers": "2"},
        "last": {"kind": "embed", "method": "last", "layers": "1"},
    }
    content["tasks"], content["capture"], content["recipes"] = {}, None, {}
    local = content["evaluations"]["mteb"]["tasks"]["sts"]
    content["evaluations"] = {"hub": {"tasks": {"STS12": {"kind": "mteb", "name": "STS12"}}}}
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    dag = look(path, home)
    before = dag.plan()
    assert (before.n_tokens, before.hub_tasks) == (0, ("STS12",))
    # One node has the hub give the texts, and only an extraction writes into a store.
    writers = [n.stage for n in dag.nodes.graph if n.resources.stores or n.resources.backbone]
    assert writers == ["extract"]
    first = run_serially(path, home)
    assert first.computed == {"corpus": 1, "extract": 1, "evaluate": 2, "report": 1}
    texts = {t for c in ("sentence1", "sentence2") for t in rows.column(c).to_pylist()}
    assert n_texts == len(texts)
    assert not run_serially(path, home).computed
    assert look(path, home).plan().hub_tasks == ()
    found = {r["method"]: r["test"] for r in rows_of(first)}
    # The same data as a local task: no text is extracted again, and the scores are the same.
    content["evaluations"] = {"local": {"tasks": {"mine": local}}}
    second = run_serially(write(tmp_path / "local.yaml", content), home)
    assert n_texts == len(texts)
    assert {r["method"]: r["test"] for r in rows_of(second)} == found
    assert np.isfinite(list(found.values())).all()


def test_a_hub_that_fails_skips_what_needs_it_and_nothing_else(
    folder: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mteb.abstasks import AbsTaskSTS

    def offline(self: Any, **_: Any) -> None:
        raise ConnectionError("no route")

    content = experiment(folder, tiny_bert)
    content["methods"] = {"mean": content["methods"]["mean"]}
    content["capture"], content["recipes"] = "hidden=2@tokens,attention_rows=1", {}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["evaluations"] = {
        "both": {"tasks": {"sts": tasks["sts"], "STS12": {"kind": "mteb", "name": "STS12"}}}
    }
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    monkeypatch.setattr(AbsTaskSTS, "load_data", offline)
    with pytest.raises(InputError, match="no route") as raised:
        run_serially(path, home)
    assert "while running 'corpus STS12 · text of evaluation'" in raised.value.__notes__
    dag = look(path, home)
    missing = {n.label for n in dag.nodes.graph if not dag.artifacts.is_done(n.ref)}
    assert missing == {
        "corpus STS12 · text of evaluation",
        "extract STS12 · text of evaluation",
        "evaluate mean · STS12",
        dag.nodes.report.label,
    }
    gaps = (gaps_folder(home, "evaluations") / "report.html").read_text(encoding="utf-8")
    assert "Missing: evaluate mean · STS12, which needs corpus STS12" in gaps
    assert "attention" in gaps
    assert dag.plan().hub_tasks == ("STS12",)


def test_an_evaluation_writes_no_store(
    folder: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = experiment(folder, tiny_bert)
    content["methods"] = {"mean": content["methods"]["mean"]}
    content["tasks"], content["capture"], content["recipes"] = {}, None, {}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["evaluations"] = {"mteb": {"tasks": {"sts": tasks["sts"]}}}
    asked = StsTask.asked_texts
    monkeypatch.setattr(
        StsTask,
        "asked_texts",
        lambda config, data: {role: texts[:1] for role, texts in asked(config, data).items()},
    )
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    with pytest.raises(NotFoundError, match="23 of 24 texts are not in store") as raised:
        run_serially(path, home)
    assert "while running 'evaluate mean · sts'" in raised.value.__notes__
    (store,) = look(path, home).open_stores()
    assert [store.segment(s).table.num_rows for s in store.segments()] == [1]


@pytest.mark.parametrize(
    ("fitted_on", "evaluated"), [("pairs", ["mean", "asked", "head"]), (None, ["mean", "asked"])]
)
def test_unless_it_names_methods_it_has_all_without_training_and_those_of_its_task(
    folder: Path, tiny_bert: Path, fitted_on: str | None, evaluated: list[str]
) -> None:
    content = experiment(folder, tiny_bert)
    del content["methods"]["VA auto"]
    content["evaluations"]["mteb"] |= {"methods": None, "fitted_on": fitted_on}
    cells = load_experiment(content).evaluation_cells
    assert list(dict.fromkeys(cell.name for cell in cells)) == evaluated
    assert {cell.seed for cell in cells if cell.name == "head"} == ({0, 1} if fitted_on else set())
