"""Layers that are chosen by the scores of an evaluation's tasks."""

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import PipelineResult
from permafrost.stages.corpus.sources.hub import HubCorpus
from permafrost.stages.embed import best_together
from permafrost.stages.mteb_evaluation import LayerChoice
from permafrost.stages.mteb_evaluation.evaluate import task_facts
from permafrost.stages.mteb_evaluation.layer_choice import mean_of_kinds
from permafrost.stages.mteb_evaluation.tasks.classification import ClassificationTask
from permafrost.stages.mteb_evaluation.tasks.clustering import ClusteringTask
from permafrost.stages.mteb_evaluation.tasks.hub import HubTask
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError
from tests.flows.experiments import pairs, rows_of, run_in, write
from tests.flows.looked import look
from tests.stages.mteb_evaluation.small_tasks import write_rows, write_task

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LAYERS: tuple[int, ...] = (1, 2, 3)
SETS: dict[str, tuple[int, ...]] = {
    ",".join(map(str, some)): some for n in LAYERS for some in combinations(LAYERS, n)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("data")
    for kind in ("sts", "retrieval", "classification"):
        write_task(found, kind)
    return found


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    def local(kind: str) -> dict[str, str]:
        return {"kind": "local", "type": kind, "path": str(folder / kind)}

    va = {"kind": "embed", "method": "va"}
    fixed = {f"VA {words}": {**va, "layers": words} for words in SETS}
    return {
        "name": "layers-by",
        "backbone": {"source": str(backbone)},
        "methods": {
            "chosen": {**va, "layers": "auto", "layers_by": {"evaluation": "dev"}},
            "exit": {**va, "layers": "auto", "layers_by": {"evaluation": "dev", "most": 1}},
            **fixed,
        },
        "evaluations": {
            "dev": {
                "tasks": {k: local(k) for k in ("sts", "retrieval")},
                "methods": [*fixed],
            },
            "test": {"tasks": {"classification": local("classification")}},
        },
        "report": {"title": "Layers", "averages": "mteb"},
        "runtime": {"workers": 1, "extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def run(
    folder: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(folder, tiny_bert))


@pytest.mark.deep
def test_layers_are_those_that_score_best_on_the_named_tasks(
    run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = run
    rows = {(r["method"], r["task"]): r for r in rows_of(result)}
    kinds = {"sts": "STS", "retrieval": "Retrieval"}
    scores = {
        layers: {task: rows[f"VA {words}", task]["test"] for task in kinds}
        for words, layers in SETS.items()
    }
    expected = best_together(LAYERS, lambda layers: mean_of_kinds(scores[layers], kinds))
    alone = max(((k,) for k in LAYERS), key=lambda layers: mean_of_kinds(scores[layers], kinds))
    nodes = look(path, home).nodes
    for name, layers in (("chosen", expected), ("exit", alone)):
        found = LayerChoice.load(home / "artifacts" / nodes.choices[name].id)
        assert found.layers == layers
        # What was tried has the scores of the rows with these layers.
        for row in found.scores.to_pylist():
            assert row["score"] == scores[SETS[row["layers"]]][row["task"]]
            assert row["category"] == kinds[row["task"]]
        words = ",".join(map(str, layers))
        chosen = rows[name, "classification"]
        assert chosen["test"] == rows[f"VA {words}", "classification"]["test"]
    assert (home / "artifacts" / nodes.choices["exit"].id / "scores.parquet").exists()
    assert result.computed["layers"] == 2


@pytest.mark.deep
def test_what_is_reported_has_no_part_in_the_choice(
    run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = run
    nodes = look(path, home).nodes
    choice = nodes.choices["chosen"]
    scored = nodes.evaluations["chosen", "classification", 0]
    assert scored.input("chosen").ref == choice.id
    assert nodes.corpora["classification · text of evaluation"].id not in choice.upstream
    assert {*choice.config["tasks"]} == {"sts", "retrieval"}


@pytest.mark.deep
def test_texts_that_layers_were_chosen_on_are_told(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    texts = pq.read_table(folder / "sts" / "test.parquet").column("sentence1").to_pylist()
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts)]
    for split in ("train", "test"):
        write_rows(tmp_path / "seen" / f"{split}.parquet", rows)
    seen = {"kind": "local", "type": "classification", "path": str(tmp_path / "seen")}
    content["evaluations"]["test"]["tasks"] = {"seen": seen}
    path, home, result = run_in(tmp_path, content)
    dag = look(path, home)
    counts = {
        name: read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")["texts_in_train"]
        for (name, task, _), node in dag.nodes.evaluations.items()
        if task == "seen"
    }
    n = len(dag.corpus("seen · text of evaluation").texts)
    learnt = {"text": {"n_texts": n, "n_in_train": n}}
    assert counts == dict.fromkeys(map("VA {}".format, SETS)) | {"chosen": learnt, "exit": learnt}
    assert "Only one seed of" not in result.report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "methods.chosen.layers=all",
            "layers_by chooses what 'layers: auto' stands for, but layers is 'all'",
        ),
        (
            "methods.chosen.layers_by.evaluation=tset",
            "layers_by.evaluation is 'tset'; there are dev, test",
        ),
        ("evaluations.dev.methods=[chosen]", "scores 'chosen', whose layers are chosen by it"),
        ("evaluations.dev.instructions={kind: mteb, methods: [who]}", "names 'who'"),
        ("methods.chosen.layers_by.most=0", "most"),
        ("methods.chosen.layers=best", "most: 1 in layers_by is the best single one"),
        ("methods.chosen.chosen_by=pearson", "layers_by chooses by the scores of an evaluation"),
    ],
)
def test_wrong_choices_are_refused(
    folder: Path, tiny_bert: Path, tmp_path: Path, change: str, message: str
) -> None:
    path = write(tmp_path / "e.yaml", experiment(folder, tiny_bert))
    with pytest.raises(InputError, match=message):
        load_experiment(path, [change])


def test_data_that_is_reported_cannot_be_chosen_on(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    content["evaluations"]["test"]["tasks"]["pairs"] = {
        **content["evaluations"]["dev"]["tasks"]["sts"],
        "main_score": "cosine_pearson",
    }
    with pytest.raises(InputError, match=r"'chosen' are chosen on 'sts', .* same data as 'pairs'"):
        build_graph(load_experiment(write(tmp_path / "e.yaml", content)))


def test_a_task_of_the_experiment_is_reported_too(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    (file,) = (folder / "sts").iterdir()
    train = pairs(tmp_path / "train.parquet", 24, 0)
    columns = {
        "kind": "similarity",
        "text": "sentence1",
        "text_pair": "sentence2",
        "label": "score",
    }
    content["tasks"] = {
        "own": {"kind": "files", "files": {"train": str(train), "test": str(file)}, "task": columns}
    }
    with pytest.raises(InputError, match=r"'chosen' are chosen on 'sts', .* same data as 'own'"):
        build_graph(load_experiment(write(tmp_path / "e.yaml", content)))


def test_data_are_the_same_under_other_names_beside_other_files(
    folder: Path, tmp_path: Path
) -> None:
    def parts(task: Any) -> frozenset[str]:
        return task_facts(task).scored_on

    there = folder / "classification"
    for name in ("train", "test"):
        (file,) = there.glob(f"{name}.*")
        shutil.copy(file, tmp_path / f"{name}2{file.suffix}")
        shutil.copy(file, tmp_path / file.name)
    with (tmp_path / f"train2{file.suffix}").open("ab") as more:
        more.write(b"\n")
    first = ClassificationTask(path=str(there))
    other = ClassificationTask(path=str(tmp_path), train="train2")
    texts = ClusteringTask(path=str(tmp_path), split="test2")
    assert parts(first) == parts(other) == parts(texts)
    assert parts(first).isdisjoint(parts(ClusteringTask(path=str(tmp_path), split="train")))


def test_data_of_the_hub_are_the_same_however_they_are_named() -> None:
    def parts(**fields: Any) -> frozenset[str]:
        return task_facts(HubTask(**fields)).scored_on

    one = parts(name="STSBenchmark", splits=("test",))
    assert one == parts(name="STSBenchmark") == parts(name="STSBenchmark", languages=("eng",))
    assert one.isdisjoint(parts(name="SICK-R"))
    assert not parts(name="STS17").isdisjoint(parts(name="STS17", subsets=("en-en",)))
    # Three of mteb's tasks are configurations of one dataset.
    assert parts(name="LEMBNarrativeQARetrieval").isdisjoint(parts(name="LEMBQMSumRetrieval"))
    task = {"kind": "similarity", "text": "sentence1", "text_pair": "sentence2", "label": "score"}
    splits = {"train": "train[:900]", "dev": "validation", "test": "test[:300]"}
    source = HubCorpus.model_validate(
        {"path": "mteb/stsbenchmark-sts", "splits": splits, "task": task}
    )
    facts = {"source": {"path": "mteb/stsbenchmark-sts", "commit": "0" * 40}}
    assert source.tested_on(facts) == one
    source = source.model_copy(update={"config": "toxicchat0124", "splits": {"test": "test"}})
    facts = {"source": {"path": "lmsys/toxic-chat", "commit": "0" * 40}}
    assert source.tested_on(facts) == parts(name="ToxicChatClassification")


@pytest.mark.deep
def test_whitening_goes_with_the_chosen_layers_and_tasks_may_be_there_to_choose_alone(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    files = {
        split: str(pairs(tmp_path / f"{split}.parquet", 24, seed))
        for seed, split in enumerate(("train", "test"))
    }
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    content["tasks"] = {"pairs": {"kind": "files", "files": files, "task": columns}}
    whitened = {**content["methods"]["exit"], "whitening": {"n_components": 4}}
    content["methods"] = {"exit": whitened}
    content["evaluations"]["dev"]["methods"] = []
    content["evaluations"]["test"] |= {"fitted_on": "pairs"}
    path, home, result = run_in(tmp_path, content)
    nodes = look(path, home).nodes
    fit = nodes.fits["exit", "pairs", 0]
    assert fit.input("chosen").ref == nodes.choices["exit"].id
    assert {r["task"] for r in rows_of(result)} == {"pairs", "classification"}
    (layer,) = LayerChoice.load(home / "artifacts" / nodes.choices["exit"].id).layers
    manifest = look(path, home).artifacts.open(fit.ref)
    assert f'"layers": [{layer}]' in (manifest / "vectors.json").read_text()


def test_five_tasks_of_a_kind_do_not_outvote_one_of_another() -> None:
    kinds = {"a": "Retrieval", "b": "Retrieval", "c": "STS"}
    assert mean_of_kinds({"a": 1.0, "b": 0.5, "c": 0.25}, kinds) == 0.5
    assert mean_of_kinds({"a": 1.0, "b": None, "c": 0.0}, kinds) == 0.25


def test_a_broken_choice_is_named(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text("{}")
    with pytest.raises(CorruptDataError, match="holds no choice of layers"):
        LayerChoice.load(tmp_path)
