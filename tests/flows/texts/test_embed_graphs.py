"""Texts with graphs through a trained graph-text model: on the command line and in Python."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import permafrost
from permafrost.flows.cli import main
from permafrost.stages.encoder.graph_text import FittedGraphText, find_graph_text
from permafrost.stages.finetune.trained import RECORD, WEIGHTS, load_finetuned
from permafrost.stages.finetune.tuned import TUNED
from permafrost.stages.graphs.given import TextRows
from permafrost.stages.graphs.given_kinds.linked import LinkedGraphs
from permafrost.stages.graphs.given_kinds.tables import TableGraphs
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.features.store import all_stores
from permafrost.storage.progress import SilentProgress
from tests.flows.trained_graph_text import Trained, train
from tests.stages.graphs import small_tables

pytestmark = pytest.mark.deep

NEW = ["the cup is in the kitchen", "the spade", "the cup is in the kitchen"]
GRAPHS = [
    [("cup", "atLocation", "kitchen"), ("tea", "in", "cup"), ("cup", "atLocation", "kitchen")],
    None,
    [("cup", "atLocation", "garden")],
]
"""Of the texts above; one triple is there twice."""


def long(*models: str) -> list[Any]:
    """Models for the long tests alone."""
    return [pytest.param(model, marks=pytest.mark.deep) for model in models]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def embed(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """`permafrost embed` in this process: the vectors, or with an exit code what it says."""

    def run(texts: Path, model: str, *flags: str, code: int = 0) -> Any:
        out = tmp_path / "out.parquet"
        out.unlink(missing_ok=True)
        home, head = str(trained.home), trained.models[model]
        argv = ["permafrost", "embed", str(texts), "-o", str(out), "--head", head, "--home", home]
        monkeypatch.setattr(sys, "argv", [*argv, *flags])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert int(end.value.code or 0) == code, said
        if code:
            assert not out.exists()
            return " ".join(said.err.split())
        table = pq.read_table(out)
        rows = table.column("embedding").combine_chunks()
        return rows.flatten().to_numpy().reshape(len(rows), -1).copy(), table

    return run


def table(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def examples(trained: Trained, path: Path, split: str) -> Path:
    """The rows of a split, as a table of texts and graphs without labels."""
    header, *rows = small_tables.EXAMPLES
    kept = [row for row in rows if row[0] == split]
    return table(path, [header[1:3], *(row[1:3] for row in kept)])


@pytest.mark.parametrize(
    "model", ["full", *long("beside", "words", "tuned", "last", "node readout")]
)
def test_vectors_are_those_that_were_scored(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path, model: str
) -> None:
    """Bitwise: the same items in the same batches."""
    texts = examples(trained, tmp_path / "texts.csv", "test")
    vectors, written = embed(texts, model, "--graphs", trained.graphs)
    answers = pq.read_table(trained.scores[model] / "predictions.parquet").to_pandas()
    tuned = load_finetuned(ArtifactStore(trained.home).open(_ref(trained, model)))
    own = {key: v for key, v in tuned.state.items() if not key.startswith(TUNED)}
    scorer = replace(tuned, state=own).module()
    scores = scorer.score(torch.from_numpy(vectors), 0).double().numpy()
    test = answers[answers.split == "test"]
    assert np.array_equal(1 / (1 + np.exp(-scores)), test.score.to_numpy())
    assert len(set(map(bytes, vectors))) == 4
    facts = json.loads(written.schema.metadata[b"permafrost"])
    assert facts["head"] == trained.models[model]
    assert facts["graphs"]["kind"] == "tables"
    assert len(facts["stores"]) == (1 if model == "words" else 2)


def test_descriptions_are_worded_as_in_training(trained: Trained, tmp_path: Path) -> None:
    """By the words that the source gave relations; a model saved before they were kept splits names."""
    fitted = find_graph_text(trained.home, trained.models["words"], None)
    texts, triples = ["the cup"], [[("tea", "in", "cup"), ("cup", "atLocation", "kitchen")]]

    def described(fitted: FittedGraphText) -> list[str] | None:
        return fitted.descriptions(fitted.corpus(TextRows(texts), triples, SilentProgress())[0])

    own = "tea was under the cup; cup at location kitchen the cup"
    assert described(fitted) == [own]
    folder = ArtifactStore(trained.home).open(_ref(trained, "words"))
    old = shutil.copytree(folder, tmp_path / "model")
    record = read_json(old / RECORD)
    assert record.pop("relation_words") == ["at location", "was under the"]
    (old / RECORD).write_text(json.dumps(record))
    split = own.replace("was under the", "in")
    assert described(replace(fitted, tuned=load_finetuned(old))) == [split]


ADVICE = {"full": " --graphs ...", "words": " --graphs ...", "plain": ""}
"""How texts are embedded with a model, behind the command with its head."""


def test_a_graph_text_model_says_that_it_does_not_predict(trained: Trained) -> None:
    for model, flags in ADVICE.items():
        key = trained.models[model]
        with pytest.raises(InputError, match="answers on the cases of its corpus alone") as told:
            permafrost.predict(["ice"], head=key, home=trained.home)
        assert f"'permafrost embed --head {key}{flags}'" in str(told.value)
    with pytest.raises(InputError, match="trained on random vectors of the nodes of its corpus"):
        permafrost.predict(["ice"], head=trained.models["noise"], home=trained.home)
    answers = pq.read_table(trained.scores["full"] / "predictions.parquet")
    assert set(answers["prediction_name"].to_pylist()) <= set(answers["label_name"].to_pylist())
    columns = [c for c in answers.column_names if c.startswith("probability_")]
    assert len(columns) == 2
    assert np.array_equal(answers[columns[1]].to_numpy(), answers["score"].to_numpy().astype("f4"))


def test_a_model_knows_how_its_graphs_were_made(trained: Trained) -> None:
    source = find_graph_text(trained.home, trained.models["full"], None).source
    assert (source["kind"], source["linking"]) == ("graphs", "label_in_text")


def _ref(trained: Trained, model: str) -> Any:
    return ArtifactStore(trained.home).find(trained.models[model])


def test_the_graph_counts_and_the_order_of_texts_does_not(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [("text", "graph"), (NEW[0], "g1"), (NEW[0], "g2"), (NEW[0], ""), (NEW[0], "g1")]
    first, _ = embed(table(tmp_path / "a.csv", rows), "full", "--graphs", trained.graphs)
    assert np.array_equal(first[0], first[3])
    assert len(set(map(bytes, first))) == 3
    back, _ = embed(
        table(tmp_path / "b.csv", [rows[0], *rows[:0:-1]]), "full", "--graphs", trained.graphs
    )
    np.testing.assert_allclose(back[::-1], first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "model", ["tuned", *long("full", "beside", "words", "plain", "last", "node readout")]
)
def test_python_gives_the_vectors_of_the_command_line(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path, model: str
) -> None:
    """To rounding: other batches, and for `last` the whole pass in place of stored states."""
    nodes = [("graph", "node", "text"), ("a", "1", "cup"), ("a", "2", "kitchen"), ("a", "3", "tea")]
    nodes += [("b", "1", "cup"), ("b", "2", "garden")]
    edges = [("graph", "source", "target", "relation"), ("a", "1", "2", "atLocation")]
    edges += [("a", "3", "1", "in"), ("a", "1", "2", "atLocation"), ("b", "1", "2", "atLocation")]
    rows = [("text", "graph"), *zip(NEW, ("a", "", "b"), strict=True)]
    spec = tmp_path / "graphs.yaml"
    spec.write_text(
        f"kind: tables\nnodes: {table(tmp_path / 'n.csv', nodes)}\n"
        f"edges: {table(tmp_path / 'e.csv', edges)}\n"
    )
    reads = model != "plain"
    flags = ["--graphs", str(spec)] if reads else []
    vectors, _ = embed(table(tmp_path / "t.csv", rows), model, *flags)
    given = GRAPHS if reads else None
    key = trained.models[model]
    home = permafrost.open(trained.home)
    direct = permafrost.encode(NEW, head=key, graphs=given, home=home, device="cpu")
    encoder: Any = home.encoder(key, device="cpu")
    stores = {s.store_id: len(s.segments()) for s in all_stores(trained.home)}
    loaded = encoder.encode(NEW, given)
    assert {s.store_id: len(s.segments()) for s in all_stores(trained.home)} == stores
    for found in (direct, loaded):
        # Equal texts share their features; the graph tells them apart.
        np.testing.assert_allclose(found, vectors, rtol=2e-4, atol=2e-5)
    assert encoder.d_out == vectors.shape[1]
    assert np.array_equal(vectors[0], vectors[2]) == (model == "plain")


def test_texts_are_linked_to_a_knowledge_graph(
    trained: Trained,
    embed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [("head", "relation", "tail"), ("cup", "atLocation", "kitchen"), ("tea", "in", "cup")]
    triples = table(tmp_path / "known.csv", known)
    knowledge = f"knowledge: {{kind: triples, path: {triples}}}"
    texts = ["tea in the kitchen", "nothing known"]
    path = table(tmp_path / "t.csv", [("text", "choice"), (texts[0], "tea"), (texts[1], "nothing")])
    flags = "--graphs", f"{{kind: linked, {knowledge}}}"
    assert "give graphs of kind 'tables'" in embed(path, "full", *flags, code=2)
    # As if the model had been trained on linked graphs, which takes a corpus of questions.
    monkeypatch.setattr(LinkedGraphs, "require_alike", lambda self, source: None)
    linked, _ = embed(path, "full", *flags)
    # Linking finds tea and kitchen, the cup between them, and no entity in the second text.
    encoder: Any = permafrost.open(trained.home).encoder(trained.models["full"], device="cpu")
    fields = {"kind": "linked", "knowledge": {"kind": "triples", "path": str(triples)}}
    graphs = [[("kitchen", "in", "tea")], []]
    np.testing.assert_allclose(encoder.encode(texts, fields), linked, rtol=1e-4, atol=1e-5)
    other = encoder.encode(texts, graphs)
    assert not np.allclose(other[0], linked[0], atol=1e-4)
    np.testing.assert_allclose(other[1], linked[1], rtol=1e-4, atol=1e-5)
    answered, _ = embed(path, "full", "--graphs", f"{{kind: linked, answer: choice, {knowledge}}}")
    assert not np.allclose(answered[0], linked[0], atol=1e-4)
    strange = table(tmp_path / "strange.csv", [*known, ("cup", "madeOf", "tea")])
    says = embed(
        path,
        "full",
        "--graphs",
        f"{{kind: linked, knowledge: {{kind: triples, path: {strange}}}}}",
        code=2,
    )
    assert "the triple 'cup', 'madeOf', 'tea', whose relation is not among the 2" in says


BAD_TABLES = {
    "a dangling edge": ("e.csv", ("g1", "1", "9", "in"), "the graph 'g1' has no node '9'"),
    "an unknown relation": (
        "e.csv",
        ("g1", "1", "2", "madeOf"),
        "'madeOf', which is not among the 2 that the model knows ('atLocation', 'in'); train a model",
    ),
    "a graph without nodes": ("t.csv", ("a text", "g9"), "names the graph 'g9', which has no node"),
    "a blank text": ("t.csv", ("  ", "g1"), "row 2"),
    "two query nodes": ("n.csv", ("g1", "5", "", "query node", "1"), "is a second query node"),
    "no score": ("n.csv", ("g1", "5", "milk", "", "nan"), "has nothing in column 'relevance'"),
    "an endless score": ("n.csv", ("g1", "5", "milk", "", "inf"), "expected a finite number"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_refused_and_nothing_is_written(
    trained: Trained,
    embed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    # As if the model had been trained on nodes with types and a relevance.
    monkeypatch.setattr(TableGraphs, "require_alike", lambda self, source: None)
    file, row, message = BAD_TABLES[name]
    tables = {
        "n.csv": [
            ("graph", "node", "text", "type", "relevance"),
            ("g1", "0", "", "query node", "0"),
            ("g1", "1", "cup", "", "0.5"),
            ("g1", "2", "kitchen", "", "1"),
        ],
        "e.csv": [("graph", "source", "target", "relation"), ("g1", "1", "2", "atLocation")],
        "t.csv": [("text", "graph"), ("a cup", "g1")],
    }
    tables[file].append(row)
    n, e, t = (table(tmp_path / name, rows) for name, rows in tables.items())
    says = embed(t, "full", "--graphs", f"{{kind: tables, nodes: {n}, edges: {e}}}", code=2)
    assert message in says


def test_tables_of_another_form_give_the_same_vectors(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [("text", "graph"), ("the cup, été", "g1"), ("a spade", "")]
    expected, _ = embed(table(tmp_path / "t.csv", rows), "full", "--graphs", trained.graphs)
    for name in ("nodes", "edges"):
        content = (trained.tables / f"{name}.csv").read_text()
        (tmp_path / f"{name}.csv").write_text(content.replace(",", "|"), encoding="utf-16")
    other = tmp_path / "other.csv"
    other.write_text("".join(";".join(row) + "\n" for row in rows), encoding="latin-1")
    fields = f"nodes: {tmp_path}/nodes.csv, edges: {tmp_path}/edges.csv"
    form = ["--delimiter", ";", "--encoding", "latin-1"]
    graphs = f"{{kind: tables, {fields}, delimiter: '|', encoding: utf-16}}"
    found, _ = embed(other, "full", "--graphs", graphs, *form)
    np.testing.assert_array_equal(found, expected)
    says = embed(other, "full", "--graphs", f"{{kind: tables, {fields}}}", *form, code=2)
    assert "nodes.csv begins like text in UTF-16" in says


@pytest.mark.parametrize("name", ["x.csv", "x.xlsx", "x.jsonl"])
def test_vectors_are_not_written_under_the_name_of_another_format(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    texts = table(tmp_path / "t.csv", [("text",), ("a cup",)])
    call = ["permafrost", "embed", str(texts), "-o", str(tmp_path / name), "--backbone", "minilm"]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"ends in '{Path(name).suffix}'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / name).exists()


BAD_FLAGS = {
    "no graphs": ("full", [], "which reads a graph beside each text, and none were given"),
    "graphs for texts": ("plain", None, "which reads texts alone, and graphs were given"),
    "no such kind": (
        "full",
        ["--graphs", "{kind: graphz}"],
        "error: graphs.kind is 'graphz', which is unknown; there are linked, tables",
    ),
    "no fields": (
        "full",
        ["--graphs", "{kind: tables}"],
        "error: graphs.nodes: this field has to be given; graphs.edges: this field has to be given",
    ),
    "no file": ("full", ["--graphs", "graphs.yml"], "'graphs.yml' is no file"),
    "random nodes": ("noise", None, "trained on random vectors of the nodes of its corpus"),
}


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_what_does_not_go_together_is_refused(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    model, flags, message = BAD_FLAGS[name]
    texts = table(tmp_path / "t.csv", [("text", "graph"), ("a cup", "g1")])
    given = ["--graphs", trained.graphs] if flags is None else flags
    assert message in embed(texts, model, *given, code=2)


def test_texts_that_are_in_no_table_name_no_graph(
    trained: Trained, embed: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("a cup\n")
    says = embed(tmp_path / "t.txt", "full", "--graphs", trained.graphs, code=2)
    assert "the texts are not read from a table" in says
    bare = table(tmp_path / "t.csv", [("text",), ("a cup",)])
    assert "'graph'" in embed(bare, "full", "--graphs", trained.graphs, code=2)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([None], "there are 2 texts and 1 graphs"),
        ([None, float("nan")], "graph 1 is nan; give a list of triples"),
        ([None, [("cup", "madeOf", "clay")]], "graph 1 has the relation 'madeOf'"),
        ([None, [("cup", "in")]], r"graph 1 has .*where a triple belongs"),
        ([[("cup", "in", " ")], None], r"graph 0 has .*where a triple belongs"),
        ({"kind": "tables"}, "^graphs.nodes: this field has to be given"),
    ],
)
def test_graphs_in_python_are_checked(trained: Trained, graphs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        permafrost.encode(
            ["one", "two"], head=trained.models["full"], graphs=graphs, home=trained.home
        )


def test_graphs_need_a_model_that_reads_them(trained: Trained) -> None:
    with pytest.raises(InputError, match="graphs were given without a graph-text model"):
        permafrost.encode(["one"], method="mean", backbone="x", graphs=[None])
    encoder: Any = permafrost.open(trained.home).encoder(trained.models["full"], device="cpu")
    with pytest.raises(InputError, match="reads a graph beside each text, and tasks of mteb have"):
        permafrost.mteb_encoder(encoder)
    with pytest.raises(InputError, match=r"text 1 is ' ', which has nothing to tokenise"):
        encoder.encode(["one", " "], [None, None])
    with pytest.raises(InputError, match="text 1 holds half of a surrogate pair"):
        encoder.encode(["one", "two \ud800"], [None, None])
    with pytest.raises(InputError, match=r"texts\[1\] is None and no text"):
        encoder.encode(["one", None], [None, None])
    column = pd.Series(["one", "two"], index=[7, 8])
    assert encoder.encode(column, [None, None]).shape[0] == 2
    assert encoder.encode([], []).shape[0] == 0


def test_vectors_that_are_no_numbers_are_refused(trained: Trained) -> None:
    encoder: Any = permafrost.open(trained.home).encoder(trained.models["beside"], device="cpu")
    for weights in encoder.module.encoder.parameters():
        weights.data.fill_(float("nan"))
    with pytest.raises(InputError, match="'a cup' with its graph"):
        encoder.encode(["a cup"], [None])


def test_a_graph_text_model_is_not_exported(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    no_place = "a folder for sentence-transformers has no place for graphs"
    why = {
        "full": no_place,
        "words": no_place,
        "plain": "reads texts alone, and export writes heads",
    }
    for model, reason in why.items():
        key, flags = (
            trained.models[model],
            ["-o", str(tmp_path / "out"), "--home", str(trained.home)],
        )
        monkeypatch.setattr(sys, "argv", ["permafrost", "export", key, *flags])
        with pytest.raises(SystemExit) as end:
            main()
        says = " ".join(capsys.readouterr().err.split())
        assert end.value.code == 2
        assert reason in says
        assert f"'permafrost embed --head {key}{ADVICE[model]}'" in says
        assert not (tmp_path / "out").exists()


def test_weights_that_are_pickled_are_refused(trained: Trained, tmp_path: Path) -> None:
    folder = ArtifactStore(trained.home).open(_ref(trained, "full"))
    copy = shutil.copytree(folder, tmp_path / "model")
    assert read_json(copy / RECORD)["relations"] == ["atLocation", "in"]
    torch.save(dict(load_finetuned(copy).state), tmp_path / "pickled")
    # Not written over: the tensors above are mapped from the old file.
    (tmp_path / "pickled").replace(copy / WEIGHTS)
    with pytest.raises(CorruptDataError, match="is damaged"):
        load_finetuned(copy)
