"""An experiment of graph-text models: from graphs to the table of the report."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import permafrost
from permafrost.flows.context import RunContext, SharedBackbone
from permafrost.flows.experiment import Experiment
from permafrost.flows.graph import Node
from permafrost.flows.methods.graph_text import GraphTextMethod
from permafrost.flows.nodes.corpora import BuildCorpus
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.finetune.losses.loss import default_graph_text_loss
from permafrost.stages.finetune.trained import load_finetuned
from permafrost.stages.finetune.tunings.lora import Lora
from permafrost.stages.graphs.views import descriptions_view
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from tests.flows.experiments import rows_of, run_in, write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import N_LAYERS, save_model
from tests.stages.finetune.tiny_graphs import ENCODER, pairs
from tests.stages.graphs import small_tables

SOURCE = '''
from typing import Literal

from permafrost.stages.graphs.source import GraphSource
from tests.stages.finetune.tiny_graphs import pairs, questions


class TinyGraphs(GraphSource):
    """Made-up graphs."""

    kind: Literal["tiny_graphs"] = "tiny_graphs"
    task: Literal["classification", "multiple_choice"] = "classification"

    @property
    def task_kind(self):
        return self.task

    def facts(self):
        return {"kind": "tiny_graphs", "task": self.task}

    def build(self, progress=None):
        return pairs() if self.task == "classification" else questions()
'''
FULL = {"kind": "gt2vec", "encoder": ENCODER}
ALONE = {**FULL, "description": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graphs")
    (made / "tiny_graphs_source.py").write_text(SOURCE)
    save_model("llama", made / "llama")
    save_model("bert", made / "bert")
    return made


def experiment(folder: Path) -> dict[str, Any]:
    optim = {"lr": 0.01, "batch_size": 6, "max_epochs": 2}

    def method(**fields: object) -> dict[str, Any]:
        # Each with an `optim` of its own, as YAML would write one that is shared as an alias.
        return {"kind": "graph_text", "optim": dict(optim), **fields}

    nodes = {"backbone": {"source": str(folder / "bert"), "max_length": 16}}
    return {
        "plugins": [str(folder / "tiny_graphs_source.py")],
        "name": "graphs",
        "backbone": {"source": str(folder / "llama"), "max_length": 50},
        "store_dtype": "float32",
        "tasks": {"pairs": {"kind": "tiny_graphs"}},
        "methods": {
            "GT2VEC": method(model=FULL, nodes=nodes),
            "tuned": method(model=FULL, nodes=dict(nodes), train={"kind": "lora", "r": 2}),
            "behind": method(model={**FULL, "graph_token": "last"}),
            "no token": method(model={**ALONE, "graph_token": "none"}),
            "text only": method(model={"kind": "text_only"}),
            "graph only": method(model={"kind": "gnn_only", "encoder": ENCODER}),
            "other graphs": method(model=ALONE, graphs="shuffled"),
            "words": {"kind": "bag_of_words"},
        },
        "seeds": [0],
        "report": {"title": "Graphs and texts"},
        "runtime": {"extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def first_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(folder))


def test_graphs_and_texts_become_scores_in_the_report(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    # Labels by both backbones, texts, and descriptions.
    assert result.computed == {
        "corpus": 3,
        "extract": 4,
        "finetune": 7,
        "score": 7,
        "control": 1,
        "report": 1,
    }
    rows = {row["method"]: row for row in rows_of(result)}
    assert rows.keys() == experiment(path.parent)["methods"].keys()
    dag = look(path, home)
    for (method, task, seed), node in dag.nodes.scores.items():
        folder = dag.artifacts.open(node.ref)
        metrics = read_json(folder / "metrics.json")
        assert metrics["metric"] == "accuracy"
        assert (metrics["n_dev"], metrics["n_test"]) == (6, 6)
        tuned = load_finetuned(dag.artifacts.open(dag.nodes.fits[method, task, seed].ref))
        assert metrics["dev"] == tuned.dev
        assert rows[method]["test"] == metrics["test"]
        answers = pq.read_table(folder / "predictions.parquet").to_pandas()
        test = answers[answers.split == "test"]
        assert np.mean(test.label == test.prediction) == metrics["test"]
    aligned = dag.artifacts.open(dag.nodes.fits["GT2VEC", "pairs", 0].ref) / "alignment.parquet"
    assert pq.read_table(aligned).column("epoch").to_pylist() == [1, 2]


def test_questions_become_scores_and_the_report_names_choices(folder: Path, tmp_path: Path) -> None:
    """Of three choices, where the classes of a corpus of questions are wrong and right."""
    whole = experiment(folder)
    whole["tasks"] = {"questions": {"kind": "tiny_graphs", "task": "multiple_choice"}}
    kinds = ("GT2VEC", "text only", "graph only", "other graphs")
    whole["methods"] = {name: whole["methods"][name] for name in kinds}
    path, home, result = run_in(tmp_path, whole)
    dag = look(path, home)
    tables = {
        name: pq.read_table(dag.artifacts.open(node.ref) / "predictions.parquet").to_pandas()
        for (name, _, _), node in dag.nodes.scores.items()
    }
    assert max(table["label"].max() for table in tables.values()) == 2, "no third choice is right"
    rows = {row["method"]: row for row in rows_of(result)}
    for name, table in tables.items():
        test = table[table["split"] == "test"]
        assert rows[name]["test"] == np.mean(test["label"] == test["prediction"])
    page = result.report.read_text(encoding="utf-8")
    assert "each choice of a question: wrong, right" in page
    sizes = re.search(r'<th scope="row">questions</th>(?:<td class="n">[\d,]+</td>)+', page)
    assert sizes is not None
    assert sizes[0].endswith(f">{rows['GT2VEC']['n_test']}</td>"), "questions, not choices"
    errors = page[page.index('id="errors"') : page.index('id="choices"')]
    shown = re.findall(r"(\d+) of (\d+) test examples wrong", errors)
    (best,) = re.findall(r'<h3>questions <span class="facts">(.+?)(?: · seed 0)? · dev', errors)
    test = tables[best][tables[best]["split"] == "test"]
    assert shown == [(str((test["label"] != test["prediction"]).sum()), str(len(test)))]
    assert "Confusion matrix" not in errors
    wrong = test[test["label"] != test["prediction"]]
    for label, prediction in zip(wrong["label"], wrong["prediction"], strict=True):
        assert (
            f'class="n">choice {int(label) + 1}</td><td class="n">choice {int(prediction) + 1}</td>'
            in errors
        )


def test_a_tuned_backbone_reads_nothing_that_is_stored_of_descriptions(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    inputs = {
        name: {i.name for i in dag.nodes.fits[name, "pairs", 0].inputs}
        for name in ("GT2VEC", "tuned")
    }
    assert inputs["GT2VEC"] - inputs["tuned"] == {"description_features"}
    assert "description_features_corpus" in inputs["tuned"]
    tuned = dag.artifacts.open(dag.nodes.fits["tuned", "pairs", 0].ref)
    assert (tuned / "backbone" / "adapter_config.json").exists()
    aligned = pq.read_table(tuned / "alignment.parquet")
    assert aligned.column("epoch").to_pylist() == [1, 2]
    method = "{kind: graph_text, model: {kind: text_only, of: description}, train: lora}"
    alone = look(path, home, [f"methods={{tuned: {method}}}"])
    labels = [node.label for node in alone.nodes.graph]
    assert "corpus pairs descriptions" in labels
    assert "extract pairs descriptions" not in labels


def test_a_backbone_of_the_same_weights_keeps_its_own_tokenizer(
    first_run: tuple[Path, Path, PipelineResult], tmp_path: Path
) -> None:
    """As two fine-tunings that differ in the words that they know."""
    path, home, _ = first_run
    target, shared = look(path, home).stores[DEFAULT_RECIPE].targets[0], SharedBackbone()
    folder = shutil.copytree(target.files.folder, tmp_path / "other")
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" ")
    files = find_backbone(BackboneConfig(source=str(folder)))
    assert files.weights_digest == target.files.weights_digest
    first = shared.load(target, "cpu")
    second = shared.load(replace(target, files=files), "cpu")
    assert second.files.folder == files.folder
    assert second.tokenizer is not first.tokenizer
    assert shared.load(replace(target, files=files), "cpu") is second


def test_a_backbone_of_ones_own_is_no_other_nodes(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    target, shared = look(path, home).stores[DEFAULT_RECIPE].targets[0], SharedBackbone()
    before = shared.load(target, "cpu").model
    own = shared.own(target, "cpu")
    assert Lora(r=1).attach(own, torch.Generator()).weights
    after = shared.load(target, "cpu").model
    for model in (before, after):
        assert not any("lora" in name for name, _ in model.named_modules())
    assert own.model not in (before, after)


def test_a_token_behind_the_text_reads_what_enters_every_block(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    entering = [f"hidden/{k}" for k in range(N_LAYERS)]
    fit = dag.nodes.fits["behind", "pairs", 0]
    assert [i.ref.split("/", 2)[2] for i in fit.inputs_named("token_features")] == entering
    arrays = {n.label: n.config["arrays"] for n in dag.nodes.graph if "arrays" in n.config}
    final = "pooled/hidden_last/final"
    assert arrays["extract pairs descriptions"] == [final]
    assert {*entering, final} <= {*arrays["extract pairs"]}
    one, other = (
        load_finetuned(dag.artifacts.open(dag.nodes.fits[name, "pairs", 0].ref)).state
        for name in ("behind", "GT2VEC")
    )
    assert any(not one[k].equal(other[k]) for k in one)


def test_without_a_token_the_scores_are_those_of_the_text_alone(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    one, other = (
        load_finetuned(dag.artifacts.open(dag.nodes.fits[name, "pairs", 0].ref)).state
        for name in ("no token", "text only")
    )
    assert one.keys() == other.keys()
    assert all(one[k].equal(other[k]) for k in one)


def test_what_changes_runs_again_and_nothing_else(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    assert not run_serially(path, home).computed
    plan = look(path, home).plan()
    assert all(row.n_run == 0 for row in plan.rows), plan.rows
    changed = run_serially(path, home, ["methods.graph only.optim.lr=0.02"])
    assert changed.computed == {"finetune": 1, "score": 1, "report": 1}
    assert run_serially(path, home, ["methods.GT2VEC.place=after"]).computed == {
        "corpus": 1,
        "extract": 1,
        "finetune": 1,
        "score": 1,
        "report": 1,
    }


@pytest.mark.deep
def test_graphs_of_chosen_cases_are_drawn_and_nothing_is_trained_for_it(
    folder: Path, first_run: tuple[Path, Path, PipelineResult], tmp_path: Path
) -> None:
    _, home, _ = first_run
    corpus = pairs()
    items = corpus.case_split("test").column("items").to_pylist()
    texts = [corpus.texts[corpus.items.column("text")[item].as_py()] for (item,) in items]
    content = experiment(folder)
    content["report"]["graphs_of"] = {"pairs": [texts[3].upper(), texts[1]]}
    chosen = write(tmp_path / "chosen.yaml", content)
    result = run_serially(chosen, home)
    # But for text only and no token.
    assert result.computed == {"score": 5, "report": 1}
    page = result.report.read_text()
    section = page[page.index('id="graphs"') : page.index("</section>", page.index('id="graphs"'))]
    drawn = [text for text in texts if f'<p class="text">{text}</p>' in section]
    assert drawn == [texts[1], texts[3]]
    assert section.index(texts[3]) < section.index(texts[1])


def test_a_plan_counts_labels_and_descriptions_and_builds_graphs_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = BuildCorpus.build_showing

    def counted(node: Node, context: RunContext, progress: Progress) -> Corpus:
        built.append(node.label)
        return build(node, context, progress)

    monkeypatch.setattr(BuildCorpus, "build_showing", counted)
    content = experiment(folder)
    plan = permafrost.plan(content, home=tmp_path / "home")
    assert built == ["corpus pairs"]
    corpus = pairs()
    descriptions = descriptions_view(corpus)
    n_texts, n_labels = len(corpus.texts), len(corpus.labels)
    # Labels by both backbones, as not every method names another one for them; of descriptions fewer arrays
    # are read than of texts.
    expected = [n_texts, n_labels, len(descriptions.texts), n_labels]
    assert [e.n_texts for e in plan.extractions] == expected
    assert plan.n_tokens == sum(e.n_tokens for e in plan.extractions)
    content["methods"] = {"GT2VEC": {"kind": "graph_text", "model": FULL, "read": "mean"}}
    (shared,) = permafrost.plan(content, home=tmp_path / "home").extractions
    assert shared.n_texts == len({*corpus.texts, *descriptions.texts, *corpus.labels})
    assert shared.n_tokens > plan.extractions[0].n_tokens


def test_what_does_not_fit_is_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "graphs.yaml", experiment(folder))

    def says(overrides: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            run_serially(file, tmp_path / "home", overrides.split("; "))
        assert not (tmp_path / "home").exists()

    says("backbone.max_length=2048", "max_length is 2048")
    says("methods.GT2VEC.graphs=shuffled", "set description: none")
    says("methods.GT2VEC.loss={kind: choice}", "scored on tasks of kind multiple_choice")
    says("methods.GT2VEC.optim.max_epochs=0", "greater than or equal to 1")
    says("methods.graph only.train=lora", "does not read what the backbone makes of texts")
    says("methods.behind.read=mean", "set read: last, or graph_token: first")
    says("methods.tuned.train.r=0", "greater than or equal to 1")
    says(
        "methods.tuned.optim.precision=bfloat16; backbone.dtype=float16",
        r"optim\.precision is bfloat16 and backbone\.dtype is float16",
    )
    says(
        "report.graphs_of={pairs: [no such words]}", "no test text has 'no such words'; give words"
    )
    says("report.graphs_of={pairs: []}", "expected a list of at least 1")
    says("report.graphs_of={pairs: ['  ']}", "at least 1 character")
    says("report.graphs_of={pears: [a]}", "names the task 'pears', .* such methods are on 'pairs'")


def test_the_experiment_on_the_page_of_graphs_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- experiment -->\n```yaml\n(.*?)^```$", page, re.M | re.S)
    methods = Experiment.model_validate(yaml.safe_load(shown)).methods
    assert {m.kind for m in methods.values()} == {"graph_text"}
    default = methods["GT2VEC"]
    assert isinstance(default, GraphTextMethod)
    assert default.model.kind == "gt2vec", "what a method trains if it does not say so"


def test_nothing_is_drawn_where_nothing_is_trained() -> None:
    method = GraphTextMethod.model_validate({"model": {"kind": "text_only"}})
    assert method.loss_on("unlabelled") is None
    assert method.loss_on("classification") == "binary"
    assert method.is_random
    search = method.model_copy(update={"loss": default_graph_text_loss("unlabelled")})
    assert not search.is_random
    tuned = search.model_copy(update={"train": Lora()})
    assert tuned.loss_on("unlabelled") == "retrieval"


@pytest.mark.deep
def test_a_search_has_a_row_of_the_frozen_backbone(folder: Path, tmp_path: Path) -> None:
    searches = [
        ("split", "query", "query_graph", "document", "document_graph", "label"),
        *(
            (split, f"a {query} of {split}", "", f"All about {about}", graph, int(query == found))
            for split in ("train", "dev", "test")
            for query in ("cup", "spade")
            for found, about, graph in (("cup", "kitchens", "g1"), ("spade", "gardens", "g2"))
        ),
    ]
    source = small_tables.write(tmp_path / "tables", examples=searches)
    optim = {"lr": 0.01, "batch_size": 2, "max_epochs": 1}
    content = {
        **{k: v for k, v in experiment(folder).items() if k in ("backbone", "report", "runtime")},
        "name": "search",
        "tasks": {"rooms": {**source, "task": "retrieval"}},
        "methods": {
            "zero-shot": {
                "kind": "graph_text",
                "model": {"kind": "text_only"},
                "loss": {"kind": "retrieval"},
            },
            "beside": {
                "kind": "graph_text",
                "model": {"kind": "qa_gnn", "encoder": ENCODER},
                "optim": optim,
            },
        },
        "seeds": [0, 1],
    }
    path, home, result = run_in(tmp_path, content)
    rows = rows_of(result)
    assert sorted((r["method"], r["seed"], r["metric"]) for r in rows) == [
        ("beside", 0, "ndcg_at_10"),
        ("beside", 1, "ndcg_at_10"),
        ("zero-shot", 0, "ndcg_at_10"),
    ]
    (zero,) = (r for r in rows if r["method"] == "zero-shot")
    assert zero["n_parameters"] == 0
    dag = look(path, home)
    kept = dag.artifacts.open(dag.nodes.fits["zero-shot", "rooms", 0].ref)
    assert load_finetuned(kept).epoch == 0
    # Both documents are among the first ten, so the right one is first or second.
    second = 1 / np.log2(3)
    assert min(abs(zero["test"] - v) for v in (1, (1 + second) / 2, second)) < 1e-9


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("engine", ["prefect", "dask"])
def test_every_engine_has_the_keys_and_bytes_of_the_serial_one(
    first_run: tuple[Path, Path, PipelineResult], folder: Path, tmp_path: Path, engine: str
) -> None:
    whole = experiment(folder)
    content = {**whole, "methods": {"GT2VEC": whole["methods"]["GT2VEC"]}}
    file = write(tmp_path / "graphs.yaml", content)
    result = permafrost.run(file, home=tmp_path / "home", engine=engine)
    assert result.computed == {"corpus": 3, "extract": 3, "finetune": 1, "score": 1, "report": 1}
    there, here = ArtifactStore(first_run[1]), ArtifactStore(tmp_path / "home")
    for stage in ("corpus", "finetune", "score"):
        for ref in here.refs(stage):
            assert here.manifest(ref).files == there.manifest(ref).files, ref
