"""A user's graphs from tables: what they become, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError

from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.corpus.values import ids_of
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.errors import InputError
from tests.stages.graphs.small_tables import CHOICES, EDGES, EXAMPLES, NODES, SEARCHES, Rows, write


def built(fields: dict[str, Any]) -> GraphCorpus:
    corpus = CORPUS_SOURCES.validate(fields).build()
    assert isinstance(corpus, GraphCorpus)
    return corpus


def nodes_of(corpus: GraphCorpus, item: int) -> dict[str, int]:
    """Label to type, of the graph of an item."""
    graph = corpus.items.column("graph").to_pylist()[item]
    rows = corpus.graphs.nodes_of(graph)
    labels = corpus.graphs.node_label[rows].tolist()
    types = corpus.graphs.node_type[rows].tolist()
    return {"" if at < 0 else corpus.labels[at]: t for at, t in zip(labels, types, strict=True)}


def test_tables_become_a_corpus_of_texts_with_graphs(tmp_path: Path) -> None:
    corpus = built(write(tmp_path))
    assert corpus.task == "classification"
    assert corpus.label_names == ("no", "yes")
    assert corpus.splits == ("train", "dev", "test")
    assert corpus.relations == ("atLocation", "in")
    assert corpus.items.num_rows == len(EXAMPLES) - 1
    assert corpus.triples(0) == [("cup", "atLocation", "kitchen"), ("tea", "in", "cup")]
    assert corpus.description(0) == "cup at location kitchen; tea in cup"
    # The cup is in the text, so it is an entity of the query; the kitchen is not.
    assert nodes_of(corpus, 0) == {"": 3, "cup": 0, "kitchen": 2, "tea": 2}
    # Texts that name the same nodes of a graph share it.
    assert len(corpus.graphs) == 2
    assert corpus.left_out == {"graphs_without_example": 0, "repeated_triples": 0}


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "csv", "tsv"])
def test_every_format_of_table_is_read_alike(extension: str, tmp_path: Path) -> None:
    expected = built(fields := write(tmp_path))
    for name in ("nodes", "edges", "examples"):
        table, path = pd.read_csv(fields[name]), str(tmp_path / f"{name}.{extension}")
        match extension:
            case "parquet":
                table.to_parquet(path)
            case "jsonl":
                table.to_json(path, orient="records", lines=True)
            case _:
                table.to_csv(path, index=False, sep="\t" if extension == "tsv" else ",")
        fields[name] = path
    assert built(fields) == expected


def test_fields_of_json_that_the_first_row_lacks_are_read(tmp_path: Path) -> None:
    fields = write(tmp_path)
    nodes = [dict(zip(NODES[0], row, strict=True)) for row in NODES[1:]]
    nodes[1] |= {"type": "answer entity"}
    nodes = [
        {**node, **({"relevance": 2.0} if at else {"type": None})} for at, node in enumerate(nodes)
    ]
    nodes[0]["relevance"] = 1.0
    # The order of the rows decides nothing, nor does a graph that is null in the first one.
    examples: list[Any] = [dict(zip(EXAMPLES[0], row, strict=True)) for row in EXAMPLES[1:]]
    examples.insert(0, {**examples[0], "text": "a text alone", "graph": None})
    for name, rows in (("nodes", nodes), ("examples", examples)):
        fields[name] = str(tmp_path / f"{name}.jsonl")
        Path(fields[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = built(fields)
    assert nodes_of(corpus, 1)["kitchen"] == 1
    assert sorted(set(corpus.graphs.node_relevance.tolist())) == [0.0, 1.0, 2.0]
    del nodes[0]["relevance"]
    Path(fields["nodes"]).write_text("".join(json.dumps(row) + "\n" for row in nodes))
    with pytest.raises(InputError, match=r"row 1 .* has nothing in column 'relevance'"):
        built(fields)


def test_rows_of_a_case_are_the_choices(tmp_path: Path) -> None:
    corpus = built({**write(tmp_path, examples=CHOICES), "task": "multiple_choice"})
    assert corpus.task == "multiple_choice"
    assert corpus.cases.num_rows == 3
    case = corpus.case_split("dev").to_pylist()[0]
    assert case["label"] == 0
    texts = corpus.items.column("text").to_pylist()
    assert [corpus.texts[texts[i]].split("? ")[1] for i in case["items"]] == [
        "kitchen", "garden", "street"
    ]  # fmt: skip
    assert corpus.split("dev").column("label").to_pylist() == [1, 0, 0]


def test_a_search_has_all_documents_and_every_judgement(tmp_path: Path) -> None:
    corpus = built({**write(tmp_path, examples=SEARCHES), "task": "retrieval"})
    assert corpus.task == "unlabelled"
    text = corpus.items.column("text").to_pylist()
    assert [corpus.texts[text[i]] for i in corpus.documents] == [
        "All about kitchens", "All about gardens"
    ]  # fmt: skip
    assert corpus.judgements.column("grade").to_pylist() == [1, 0, 2]
    assert corpus.items.column("graph").to_pylist()[0] == -1, "an empty cell is no graph"
    assert corpus.examples.num_rows == 2


def with_column(rows: Rows, name: str, values: list[Any]) -> Rows:
    return [(*row, value) for row, value in zip(rows, [name, *values], strict=True)]


def test_given_types_and_a_relevance_count(tmp_path: Path) -> None:
    types = ["other", "answer entity", "", 0, "other"]
    nodes = with_column(with_column(NODES, "type", types), "relevance", [0.5, 1, 2, 0, 0])
    corpus = built(write(tmp_path, nodes=nodes))
    columns = [
        CORPUS_SOURCES.validate(f).facts().get("node_columns")
        for f in (write(tmp_path / "a"), write(tmp_path, nodes=nodes))
    ]
    assert columns == [None, ["type", "relevance"]], "which triples do not have"
    # The cup is in the text; the kitchen's type is given; nothing is known of the tea.
    assert nodes_of(corpus, 0) == {"": 3, "cup": 0, "kitchen": 1, "tea": 2}
    assert corpus.graphs.node_relevance[:4].tolist() == [0, 0.5, 1, 2]
    bare = built({**write(tmp_path / "b", nodes=nodes), "linking": "none"})
    assert nodes_of(bare, 0) == {"": 3, "cup": 2, "kitchen": 1, "tea": 2}


def test_a_query_node_of_the_tables_says_what_the_query_is_linked_to(tmp_path: Path) -> None:
    nodes = with_column([*NODES, ("g1", "q", "")], "type", [2, 2, 2, 2, 2, "query node"])
    edges = [*EDGES, ("g1", "q", 3, "query entity"), ("g1", 3, "q", "^query entity")]
    corpus = built({**write(tmp_path, nodes=nodes, edges=edges), "linking": "none"})
    assert nodes_of(corpus, 0) == {"": 3, "cup": 2, "kitchen": 2, "tea": 0}
    assert corpus.relations == ("atLocation", "in"), "its relation is none of the graph's own"
    assert corpus.triples(0) == [("cup", "atLocation", "kitchen"), ("tea", "in", "cup")]


def test_a_graph_without_edges_and_a_text_without_entities_are_what_they_are(
    tmp_path: Path,
) -> None:
    nodes = [*NODES, ("g3", 1, "lamp"), ("g4", 1, "unused")]
    examples = [*EXAMPLES, ("train", "nothing of it", "g3", "no"), ("train", "bare", "", "yes")]
    corpus = built(write(tmp_path, nodes=nodes, examples=examples))
    # Train comes first, so these are items 4 and 5.
    assert nodes_of(corpus, 4) == {"": 3, "lamp": 2}
    graph = corpus.items.column("graph").to_pylist()
    assert corpus.graphs.edges_of(graph[4]) == slice(*[corpus.graphs.edges_of(graph[4]).start] * 2)
    assert corpus.description(graph[4]) == ""
    assert graph[5] == -1
    assert corpus.left_out["graphs_without_example"] == 1
    assert "unused" not in list(corpus.labels)


def test_a_table_of_edges_with_a_header_alone_is_one_without_edges(tmp_path: Path) -> None:
    corpus = built(write(tmp_path, edges=EDGES[:1]))
    assert corpus.relations == ()
    assert nodes_of(corpus, 0) == {"": 3, "cup": 0, "kitchen": 2, "tea": 2}


def test_tables_of_another_form_are_read_as_the_fields_say(tmp_path: Path) -> None:
    examples = [*EXAMPLES, ("train", "café", "g1", "no")]
    expected = built(fields := write(tmp_path, examples=examples))
    assert "delimiter" not in CORPUS_SOURCES.validate(fields).facts()
    for name in ("nodes", "edges", "examples"):
        table = pd.read_csv(fields[name])
        table.to_csv(fields[name], index=False, sep=";", encoding="latin-1")
    table.to_parquet(tmp_path / "examples.parquet")
    form = {"delimiter": ";", "encoding": "latin-1"}
    assert built({**fields, **form}) == expected
    # Parquet needs neither, and may stand beside such files.
    assert built({**fields, **form, "examples": str(tmp_path / "examples.parquet")}) == expected
    for name in ("nodes", "edges"):
        table = pd.read_csv(fields[name], sep=";", encoding="latin-1")
        table.to_parquet(tmp_path / f"{name}.parquet")
    parquet = {n: str(tmp_path / f"{n}.parquet") for n in ("nodes", "edges", "examples")}
    for field, value in form.items():
        with pytest.raises(InputError, match=f"{field} is .*but no file has one .nodes is parquet"):
            built({**fields, **parquet, field: value})
    with pytest.raises(InputError, match=r"name its encoding, such as 'encoding: cp1252' beside"):
        built({**fields, "delimiter": ";"})


def test_a_grade_below_zero_is_one_of_a_document_that_is_irrelevant(tmp_path: Path) -> None:
    searches = [*SEARCHES, ("test", "a spade", "g2", "All about kitchens", "g1", -1)]
    corpus = built({**write(tmp_path, examples=searches), "task": "retrieval"})
    assert corpus.judgements.column("grade").to_pylist() == [1, 0, 2, -1]


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    fields = write(tmp_path)
    source = CORPUS_SOURCES.validate({**fields, "nodes": str(tmp_path / "nope.csv")})
    with pytest.raises(InputError, match=r"there is no file .*nope\.csv"):
        source.facts()


def test_a_triple_that_is_there_twice_counts_once_and_is_told(tmp_path: Path) -> None:
    corpus = built(write(tmp_path, edges=[*EDGES, EDGES[1], EDGES[1]]))
    assert corpus.triples(0) == [("cup", "atLocation", "kitchen"), ("tea", "in", "cup")]
    assert corpus.left_out["repeated_triples"] == 2
    assert corpus.counts()["n_left_out_repeated_triples"] == 2


def test_a_vocabulary_gives_the_order_and_words_of_relations(tmp_path: Path) -> None:
    more = {"relations": ["in", "atLocation", "never"], "relation_words": {"in": "is inside"}}
    corpus = built({**write(tmp_path), **more})
    assert corpus.relations == ("in", "atLocation", "never")
    assert corpus.description(0) == "cup at location kitchen; tea is inside cup"
    assert corpus.n_relations == 2 * (3 + 2)


def test_names_of_relations_are_trimmed_as_those_of_the_table_are(tmp_path: Path) -> None:
    fields = write(tmp_path, edges=[EDGES[0], *((*row[:3], f" {row[3]}") for row in EDGES[1:])])
    more = {"relations": ["in ", " atLocation"], "relation_words": {" in": "is inside"}}
    corpus = built({**fields, **more})
    assert corpus.relations == ("in", "atLocation")
    assert corpus.description(0) == "cup at location kitchen; tea is inside cup"
    for wrong, message in (
        ({"relations": ["in", "in "]}, "relations names 'in' and 'in '"),
        ({"relations": ["in", " "]}, "relations names ' ', which is blank"),
        ({"relations": ["in", "^in"]}, r"relations names '\^in'; names that begin"),
        ({"relation_words": {"in": "a", "in ": "b"}}, "relation_words names 'in' and 'in '"),
    ):
        with pytest.raises(ValidationError, match=message):
            CORPUS_SOURCES.validate({**fields, **wrong})


def test_ids_that_pandas_wrote_as_floats_are_explained(tmp_path: Path) -> None:
    """A column of whole numbers with a gap is float64: 1.0 in csv, and rounded from 2**53 on."""
    large = 2**53
    names = {"g1": large, "g2": large + 1, "": None}
    nodes, edges = (
        [rows[0], *((names[str(row[0])], *row[1:]) for row in rows[1:])] for rows in (NODES, EDGES)
    )
    fields = write(tmp_path, nodes=nodes, edges=edges)
    table = pd.read_csv(fields["examples"])
    table["graph"] = table["graph"].map(names)
    table.loc[0, "graph"] = None
    fields["examples"] = str(tmp_path / "examples.parquet")
    table.to_parquet(fields["examples"])
    with pytest.raises(
        InputError,
        match=r"row 2 of .* has the id 9007199254740992 .* stored as double .* as Int64 or text",
    ):
        built(fields)
    table["graph"] = table["graph"].map({float(large): 1.0})
    fields = write(tmp_path / "b", nodes=[NODES[0], *((1, *row[1:]) for row in NODES[1:4])])
    table.to_csv(fields["examples"], index=False)
    with pytest.raises(
        InputError,
        match=r"names the graph '1\.0', .* there is a graph '1', and pandas .* dtype Int64",
    ):
        built({**fields, "edges": str(write(tmp_path / "c", edges=EDGES[:1])["edges"])})


@pytest.mark.parametrize(("kind", "first"), [("float16", 2**11), ("float32", 2**24)])
def test_short_floats_round_ids_earlier(kind: str, first: int) -> None:
    table = pa.table({"id": pa.array(np.array([first - 1, first], kind))})
    with pytest.raises(InputError, match=rf"row 2 of here has the id {first} .* from {first} on"):
        ids_of(table, "id", "here")
    assert ids_of(table.slice(0, 1), "id", "here") == [str(first - 1)]


FAULTY: dict[str, tuple[dict[str, Rows], dict[str, Any], str]] = {
    "dangling edge": (
        {"edges": [*EDGES, ("g1", 1, 9, "in")]},
        {},
        r"row 4 of .*edges\.csv leads from '1' to '9', but the graph 'g1' has no node '9' in .*nodes",
    ),
    "edge of no graph": (
        {"edges": [*EDGES, ("g9", 1, 2, "in")]},
        {},
        "row 4 .* an edge of the graph 'g9', which has no node",
    ),
    "unknown relation": (
        {},
        {"relations": ["atLocation"]},
        r"row 2 of .* has the relation 'in', .* among the 1 in 'relations'",
    ),
    "name of an inverse": (
        {"edges": [*EDGES, ("g1", 2, 3, "^in")]},
        {},
        r"row 4 of .* has the relation '\^in'; names that begin with \^",
    ),
    "name of a query node's": (
        {"edges": [*EDGES, ("g1", 2, 3, "query entity")]},
        {},
        r"row 4 of .* has the relation 'query entity'; 'query entity' and 'answer entity' are the",
    ),
    "node twice": (
        {"nodes": [*NODES, ("g2", 2, "shed")]},
        {},
        "row 6 .* the node '2' of the graph 'g2' again",
    ),
    "blank node": (
        {"nodes": [*NODES, ("g2", 3, " ")]},
        {},
        "row 6 .* has the blank text ' ' in column 'text'",
    ),
    "no id": ({"nodes": [*NODES, ("", 3, "shed")]}, {}, "row 6 .* has nothing in column 'graph'"),
    "unknown type": (
        {"nodes": with_column(NODES, "type", ["entity", 2, 2, 2, 2])},
        {},
        "row 1 .* has the type 'entity'; types are 0 or 'query entity'",
    ),
    "relevance that is no number": (
        {"nodes": with_column(NODES, "relevance", [1, "nan", 1, 1, 1])},
        {},
        "row 2 .* has nothing in column 'relevance'",
    ),
    "relevance beyond 32 bits": (
        {"nodes": with_column(NODES, "relevance", [1, 1, -1e39, 1, 1])},
        {},
        r"row 3 .* has the relevance -1e\+39, whose absolute value is above 3.403e\+38",
    ),
    "infinite relevance": (
        {"nodes": with_column(NODES, "relevance", [1, 1, "inf", 1, 1])},
        {},
        "row 3 .* has inf in column 'relevance', expected a finite number",
    ),
    "query nodes alone": (
        {
            "nodes": [("graph", "node", "text", "type"), ("g1", 1, "", 3), ("g2", 1, "", 3)],
            "edges": [("graph", "source", "target", "relation")],
        },
        {},
        "none of the 2 graphs has a node",
    ),
    "two query nodes": (
        {"nodes": with_column(NODES, "type", [3, 3, 2, 2, 2])},
        {},
        "row 2 .* a second query node of the graph",
    ),
    "unknown graph": (
        {"examples": [*EXAMPLES, ("train", "a text", "g7", "no")]},
        {},
        "row 13 of .* names the graph 'g7', which has no node .* leave the cell empty",
    ),
    "blank text": (
        {"examples": [*EXAMPLES, ("train", "", "g1", "no")]},
        {},
        "row 13 .* blank text",
    ),
    "unknown split": (
        {"examples": [*EXAMPLES, ("valid", "a", "g1", "no")]},
        {},
        "row 13 .* of the split 'valid', which is not",
    ),
    "class that train lacks": (
        {"examples": [*EXAMPLES, ("dev", "a", "g1", "perhaps")]},
        {},
        "'perhaps' .* never occurs in train",
    ),
    "words of no relation": ({}, {"relation_words": {"near": "by"}}, "relation_words has 'near'"),
    "no column": (
        {"edges": [row[:3] for row in EDGES]},
        {},
        "no column 'relation'.* A table of edges has",
    ),
    "another name for a label": (
        {"nodes": [("graph", "node", "label"), *NODES[1:]]},
        {},
        "nodes.* has no column 'text'; its columns are 'graph', 'node', 'label'. A table of nodes",
    ),
    "two right choices": (
        {"examples": [*CHOICES, ("dev", "dev 1", "another", "g1", 1)]},
        {"task": "multiple_choice"},
        r"the case 'dev 1' of .* has 4 choices, of which 2 are right",
    ),
    "blank case": (
        {"examples": [*CHOICES, ("dev", "", "a", "g1", 0), ("dev", "", "b", "g1", 1)]},
        {"task": "multiple_choice"},
        "row 10 .* has nothing in column 'case'",
    ),
    "case in two splits": (
        {"examples": [*CHOICES, ("test", "dev 1", "another", "g1", 0)]},
        {"task": "multiple_choice"},
        "in dev and test",
    ),
    "label of a choice": (
        {"examples": [*CHOICES, ("dev", "dev 1", "another", "g1", 2)]},
        {"task": "multiple_choice"},
        "labels of this kind of task are 0 and 1",
    ),
    "a word among labels": (
        {"examples": [*CHOICES, ("dev", "dev 1", "another", "g1", "right")]},
        {"task": "multiple_choice"},
        r"row 10 of .* has 'right' in column 'label', expected a finite number",
    ),
    "judged twice": (
        {"examples": [*SEARCHES, ("test", "a spade", "g2", "All about gardens", "g2", 1)]},
        {"task": "retrieval"},
        r"row 4 of .* that row 3 has judged for it \(grades 1 and 2\); keep one",
    ),
    "half a grade": (
        {"examples": [*SEARCHES, ("test", "a", "", "b", "", 0.5)]},
        {"task": "retrieval"},
        "row 4 .* the grade 0.5",
    ),
    "a grade that takes too much memory": (
        {"examples": [*SEARCHES, ("test", "a", "", "b", "", 10_001)]},
        {"task": "retrieval"},
        "row 4 .* has the relevance 10001, whose absolute value is above 10,000",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_tables_that_do_not_go_together_are_refused(name: str, tmp_path: Path) -> None:
    tables, fields, message = FAULTY[name]
    source = CORPUS_SOURCES.validate({**write(tmp_path, **tables), **fields})
    with pytest.raises(InputError, match=message):
        source.build()


def test_a_vocabulary_that_names_a_relation_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="names 'in' twice"):
        CORPUS_SOURCES.validate({**write(tmp_path), "relations": ["in", "in"]})
