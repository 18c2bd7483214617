"""Items of a corpus as tensors, against their triples looked up one by one."""

from dataclasses import replace

import numpy as np
import pytest

from permafrost.stages.finetune.graph_batches import (
    ItemFeatures,
    RandomRows,
    StoredRows,
    graph_batch,
    relations_of,
)
from permafrost.stages.finetune.item_graphs import graphs_of
from permafrost.stages.graphs.assembling import Case, Item, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.graphs.small_graphs import choices, search

FEATURES = ItemFeatures(RandomRows(5, 1), RandomRows(3, 2))


def test_a_batch_holds_the_graphs_of_its_items() -> None:
    corpus = choices()
    items = np.array([3, 0, len(corpus.items) - 1])
    batch = graph_batch(corpus, FEATURES, items, graphs_of(corpus)[items])
    assert batch.n_graphs == 3
    labels = np.array([*corpus.labels])
    drawn = RandomRows(5, 1).take(np.arange(len(labels)))
    for g, item in enumerate(items.tolist()):
        row = corpus.items.slice(item, 1).to_pylist()[0]
        rows = np.flatnonzero(batch.graph_of_node.numpy() == g)
        assert batch.query_node[g] == rows[0]
        expected = RandomRows(3, 2).take(np.array([row["query"], row["text"]]))
        assert batch.query_features[g].tolist() == expected[0].tolist()
        assert batch.text_features[g].tolist() == expected[1].tolist()
        names = [
            "query",
            *(labels[np.all(drawn == f, axis=1)].item() for f in batch.features[rows[1:]].numpy()),
        ]
        found = {
            (names[s - rows[0]], corpus.relation_names[r], names[t - rows[0]])
            for s, r, t in zip(
                *(x.tolist() for x in (batch.source, batch.relation, batch.target)), strict=True
            )
            if s in rows
        }
        own = set(corpus.triples(row["graph"])) if row["graph"] >= 0 else set()
        wanted = own | {(t, f"^{r}", s) for s, r, t in own}
        inner = {edge for edge in found if "query" not in edge}
        assert inner == wanted
        assert (len(rows) == 1) == (row["graph"] < 0)
    assert int(batch.relation.max()) < relations_of(corpus) == 2 * (2 + 2)


def test_a_hidden_query_leaves_nothing_of_the_text_in_the_graph() -> None:
    corpus = choices()
    scores = np.linspace(0.1, 0.9, len(corpus.graphs.node_label), dtype=np.float32)
    corpus = replace(corpus, graphs=replace(corpus.graphs, node_relevance=scores, are_scored=True))
    items = np.arange(4)
    graphs = graphs_of(corpus)[items]
    shown, hidden = (
        graph_batch(corpus, FEATURES, items, graphs, query) for query in ("stored", "hidden")
    )
    assert hidden.features.equal(shown.features)
    assert not hidden.query_features.any()
    assert shown.relevance is not None
    assert shown.relevance.any()
    assert hidden.relevance is None
    assert not hidden.text_features.any()
    assert set(hidden.node_type.tolist()) == {2, 3} < set(shown.node_type.tolist())
    names = [corpus.relation_names[r] for r in hidden.relation.tolist()]
    assert set(names) == {"atLocation", "^atLocation", "isA", "^isA"}
    assert len(names) < len(shown.relation)


def test_shuffled_graphs_are_those_of_other_items() -> None:
    corpus = search()
    true, dealt = graphs_of(corpus), graphs_of(corpus, 7)
    assert sorted(true) == sorted(dealt)
    assert (true != dealt).all()
    assert np.array_equal(dealt, graphs_of(corpus, 7))
    unlinked = graphs_of(choices(), 3)
    assert unlinked[-1] == -1, "an item without graph gets none"


def _sharing(of_items: list[int], linked: int = 0) -> GraphCorpus:
    """Items with graphs of these numbers, each made twice, the second time in another order; the query nodes
    of the first ones are linked."""
    graphs, cases = GraphCollector(2), list[Case]()
    for at, which in enumerate(of_items):
        nodes, edges = [f"a{which}", "b", "c"], [(0, 0, 1), (1, 1, 2)]
        if at % 2:
            nodes, edges = nodes[::-1], [(1, 1, 0), (2, 0, 1)]
        queries = [nodes.index("b")] if at < linked else []
        item = Item(f"text {at}", graphs.add(nodes, edges, queries=queries))
        cases.append(Case("train", (item,), at % 2))
    return assemble("classification", cases, graphs, ("r", "s"), label_names=("no", "yes"))


@pytest.mark.parametrize("of_items", [[0, 0, 0, 1, 1, 2], [0, 1] * 5, [0, 0, 1, 2, 3, 4, 5, 5, 5]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shuffled_graphs_are_none_that_equal_the_own(of_items: list[int], seed: int) -> None:
    """Graphs are dealt out by what they hold: those of other texts may be the same."""
    corpus = _sharing(of_items)
    dealt = np.array(of_items)[graphs_of(corpus, seed)]
    assert (dealt != of_items).all()
    assert sorted(dealt) == sorted(of_items)


def test_graphs_that_all_differ_are_dealt_out_as_ever() -> None:
    corpus = _sharing([*range(9)])
    circle = np.random.default_rng([3, 9]).permutation(9)
    expected = np.empty(9, np.int64)
    expected[circle] = np.roll(circle, 1)
    assert np.array_equal(graphs_of(corpus, 3), expected)


def test_graphs_of_which_one_is_everywhere_cannot_be_shuffled() -> None:
    with pytest.raises(InputError, match=r"but 4 of the 6 texts with a graph have the same one"):
        graphs_of(_sharing([0, 0, 0, 0, 1, 2]), 1)
    # Told apart by what the query names alone, which a model may not read.
    corpus = _sharing([0, 0, 0, 0], linked=2)
    assert {*graphs_of(corpus, 1)[:2].tolist()} == {2, 3}
    with pytest.raises(InputError, match="4 of the 4"):
        graphs_of(corpus, 1, "hidden")


def test_rows_come_in_the_order_asked_for() -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    rows = StoredRows(InMemoryReader("pooled/hidden_last/final", Ragged(values, np.arange(7))))
    assert rows.take(np.array([4, 0, 4])).tolist() == values[[4, 0, 4]].tolist()
    assert rows.take(np.array([], np.int64)).shape == (0, 2)
    drawn = RandomRows(3, 1)
    assert drawn.take(np.array([2, 2])).tolist() == [drawn.take(np.array([2]))[0].tolist()] * 2
    assert drawn.take(np.array([2])).tolist() != RandomRows(3, 2).take(np.array([2])).tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_random_rows_are_standard_normal(seed: int) -> None:
    rows = RandomRows(64, seed).take(np.arange(200))
    assert abs(rows.mean()) < 0.05
    assert abs(rows.std() - 1) < 0.05
