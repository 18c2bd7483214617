"""Corpora with graphs in flows: made, read as plain ones, and their texts in other roles."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import Graph, Node
from permafrost.flows.nodes.corpora import corpus_node
from permafrost.flows.nodes.extraction import extract_node
from permafrost.flows.nodes.graphs import descriptions_node, graphs_input, labels_node
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.pipeline import run_serially
from permafrost.flows.preview import Preview
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.extraction.target import ExtractConfig, ExtractTarget, resolve_target
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.plugins import use_files
from permafrost.storage.artifacts import parse_ref
from permafrost.storage.progress import SilentProgress
from tests.flows import experiments
from tests.flows.conftest import tiny_experiment
from tests.flows.test_cli import Cli
from tests.flows.test_cli import cli as cli
from tests.stages.graphs.small_graphs import choices
from tests.stages.graphs.small_linked import TRAIN, questions, table
from tests.stages.graphs.small_tables import write

pytestmark = pytest.mark.deep

SOURCE = """
from typing import ClassVar, Literal

from permafrost.stages.graphs.source import GraphSource
from tests.flows import experiments
from tests.flows.conftest import tiny_experiment
from tests.flows.test_cli import Cli
from tests.flows.test_cli import cli as cli
from tests.stages.graphs.small_graphs import choices
from tests.stages.graphs.small_tables import write


class Small(GraphSource):
    kind: Literal["small_graphs"] = "small_graphs"
    known_ahead: ClassVar[bool] = KNOWN

    @property
    def task_kind(self):
        return "multiple_choice"

    def facts(self):
        return self.model_dump()

    def build(self):
        return choices()
"""


@pytest.fixture(autouse=True)
def no_plugins_stay() -> Iterator[None]:
    yield
    use_files([])


def small(folder: Path, known_ahead: bool = True) -> Node:
    """The node of `choices`, made by a source outside the project."""
    file = folder / "small.py"
    file.write_text(SOURCE.replace("KNOWN", str(known_ahead)))
    use_files([file])
    return corpus_node("cups", CORPUS_SOURCES.validate({"kind": "small_graphs"}))


def target(backbone: Path, recipe: str = "plain", max_length: int = 64) -> ExtractTarget:
    return resolve_target(
        ExtractConfig(
            backbone=BackboneConfig(source=str(backbone), max_length=max_length),
            recipe=parse_recipe(recipe),
            capture=parse_capture("hidden=1@mean"),
        )
    )


def test_labels_and_descriptions_are_corpora_that_any_extraction_reads(
    tiny_bert: Path, tmp_path: Path
) -> None:
    graphs, reading = small(tmp_path), target(tiny_bert)
    labels, described = labels_node(graphs), descriptions_node(graphs, reading)
    extraction = extract_node(reading, corpus_input(labels), "extract labels")
    context = RunContext(tmp_path / "home", RunRuntime())
    for node in (graphs, labels, described, extraction):
        make(node, context, SilentProgress())
    made = context.corpus(graphs_input(graphs))
    assert made == choices()
    plain = context.corpus(corpus_input(graphs))
    assert type(plain) is Corpus
    assert plain.digests == made.digests
    summary = context.artifacts.manifest(graphs.ref).summary
    assert {k: summary[k] for k in ("task", "n_graphs", "n_edges", "n_cases", "n_labels")} == {
        "task": "cups", "n_graphs": 8, "n_edges": 16, "n_cases": 4, "n_labels": 6
    }  # fmt: skip
    assert isinstance(made, GraphCorpus)
    assert list(context.corpus(corpus_input(labels)).texts) == list(made.labels)
    texts = context.corpus(corpus_input(described))
    first = texts.texts[texts.examples.column("text").to_pylist()[0]]
    assert first == f"{made.description(0)} where is cup 0? kitchen"
    assert context.artifacts.manifest(described.ref).summary["task"] == "cups descriptions"
    assert context.artifacts.manifest(extraction.ref).summary["n_texts"] == len(made.labels)


def test_a_description_is_cut_at_the_longest_input_of_its_backbone_and_the_text_is_not(
    tiny_bert: Path, tmp_path: Path
) -> None:
    graphs, context = small(tmp_path), RunContext(tmp_path / "home", RunRuntime())
    short = descriptions_node(graphs, target(tiny_bert, max_length=4))
    for node in (graphs, short):
        make(node, context, SilentProgress())
    assert set(context.corpus(corpus_input(short)).texts) == {
        text for text in choices().texts if not text.endswith("?")
    }


def test_what_decides_the_texts_of_a_view_is_in_its_key(tiny_bert: Path, tmp_path: Path) -> None:
    graphs = small(tmp_path)
    # transformers chooses the tokenizer's class by config.json.
    other = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    (other / "config.json").write_bytes((tiny_bert / "config.json").read_bytes() + b" ")
    views = [
        labels_node(graphs),
        descriptions_node(graphs, target(tiny_bert)),
        descriptions_node(graphs, target(tiny_bert), "after"),
        descriptions_node(graphs, target(tiny_bert, max_length=32)),
        descriptions_node(graphs, target(tiny_bert, recipe="echo")),
        descriptions_node(graphs, target(other)),
    ]
    assert len({view.id for view in views}) == len(views)
    assert all(view.upstream == (graphs.id,) for view in views)


@pytest.mark.parametrize("known_ahead", [True, False])
def test_a_plan_builds_what_it_may_and_publishes_nothing(
    known_ahead: bool, tiny_bert: Path, tmp_path: Path
) -> None:
    graphs = small(tmp_path, known_ahead)
    views = labels_node(graphs), descriptions_node(graphs, target(tiny_bert))
    context = Preview(Graph([graphs, *views]), tmp_path / "home", RunRuntime())
    for view in views:
        assert context.is_known(corpus_input(view)) == known_ahead
        if known_ahead:
            assert len(context.corpus(corpus_input(view)).texts)
            assert not context.artifacts.is_done(parse_ref(view.id))


def test_commands_treat_a_corpus_with_graphs_as_any_other(
    cli: Cli, tiny_bert: Path, tmp_path: Path
) -> None:
    """And a method that knows of no graphs reads its texts."""
    content = {
        **tiny_experiment(tiny_bert),
        "tasks": {"things": write(tmp_path / "tables")},
        "methods": {"words": {"kind": "bag_of_words", "c": [1.0]}},
        "seeds": [0],
        "report": {"title": "Things"},
    }
    path = experiments.write(tmp_path / "things.yaml", content)
    before = cli.json("plan", str(path))
    counts = {"n_graphs": 2, "n_nodes": 5, "n_edges": 3, "n_labels": 5, "n_relations": 2}
    assert counts.items() <= before["graphs"]["things"].items()
    told = cli("plan", str(path))
    assert "graphs of 'things': 2 with 5 nodes and 3 edges; 5 different labels" in told
    run_serially(path, cli.home)
    after = cli.json("plan", str(path))
    assert after["graphs"] == {}
    assert {row["stage"]: row["n_run"] for row in after["stages"]}["corpus"] == 0
    (corpus,) = [a for a in cli.json("ls")["artifacts"] if a["artifact"].startswith("corpus/")]
    assert counts.items() <= corpus["summary"].items()
    shown = cli.json("show", corpus["artifact"].split("/")[1])
    assert {"nodes.parquet", "edges.parquet", "graphs.json"} <= set(shown["files"])
    assert "every checksum" in cli("verify")

    edges = tmp_path / "tables" / "edges.csv"
    edges.write_text(edges.read_text() + "g2,2,1,in\n")
    said = cli("why", "corpus", "--experiment", str(path))
    assert "things: edges.csv changed, with the same texts and labels of texts" in said
    run_serially(path, cli.home)
    assert f"artifacts/{corpus['artifact']}" in cli.json("gc")["removed"]
    (kept,) = (cli.home / "artifacts" / "corpus").iterdir()
    (kept / "nodes.parquet").write_bytes(b"damaged")
    assert "nodes.parquet" in cli("verify", code=1)


@pytest.mark.deep
def test_a_plan_tells_how_many_questions_have_equal_choices(
    cli: Cli, tiny_bert: Path, tmp_path: Path
) -> None:
    rows = [*TRAIN, ("d", "What flies?", ["birds", "birds"], 0)]
    ids = table(tmp_path, "ids", [{"id": "a"}, {"id": "b"}])
    asked = questions(tmp_path, rows, inhouse_train_qids=ids)
    content = {
        **tiny_experiment(tiny_bert),
        "tasks": {"asked": asked.model_dump(mode="json")},
        "methods": {"text only": {"kind": "graph_text", "model": {"kind": "text_only"}}},
        "seeds": [0],
        "report": {"title": "Asked"},
    }
    told = cli("plan", str(experiments.write(tmp_path / "asked.yaml", content)))
    assert "2 of 8 cases have two choices with the same text" in told
