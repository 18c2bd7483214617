"""Lemmas, entity linking, and the subgraphs around what is linked."""

from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.graphs.knowledge.triples import TriplesGraph
from permafrost.stages.graphs.knowledge_graph import KnowledgeGraph
from permafrost.stages.graphs.lemmas import is_stop_word, lemma, words_of
from permafrost.stages.graphs.linking import EntityIndex
from permafrost.stages.graphs.subgraph import SubgraphFinder
from permafrost.storage.progress import SilentProgress
from tests.stages.graphs.small_knowledge import write_triples


def test_words_are_lower_case_without_punctuation_and_possessives() -> None:
    assert words_of("The dog's well-kept, OLD bones (two)!") == [
        "the",
        "dog",
        "well-kept",
        "old",
        "bones",
        "two",
    ]
    assert words_of("don’t  snake_case") == ["don't", "snake", "case"]
    assert [lemma(word) for word in ("children", "running", "london", "xyzzy")] == [
        "child",
        "run",
        "london",
        "xyzzy",
    ]
    assert [is_stop_word(word) for word in ("is", "being", "the", "dog")] == [True] * 3 + [False]


LABELS = ["be in", "child", "dog", "dogs", "hot dog", "hot dog stand", "ride bike", "the", "who"]


def names(text: str, max_words: int = 5) -> list[str]:
    return [LABELS[node] for node in EntityIndex(LABELS, max_words).link(text)]


def test_the_longest_phrase_is_taken_whatever_its_forms() -> None:
    assert names("Hot dogs for the children") == ["hot dog", "child"]
    assert names("a hot dog stand, a hot dog") == ["hot dog stand", "hot dog"]
    assert names("She was riding bikes") == ["ride bike"]
    assert names("Dogs!") == ["dog", "dogs"], "labels with equal lemmas"
    assert names("the dog that bit the dog") == ["dog", "dogs"], "each once"


def test_stop_words_alone_are_not_linked() -> None:
    assert names("who is in the house") == []
    assert names("") == names("?!") == []


def test_labels_longer_than_the_longest_phrase_are_not_linked() -> None:
    assert names("a hot dog stand", max_words=2) == ["hot dog"]
    assert len(EntityIndex(LABELS)) == 5


@pytest.mark.parametrize(
    ("language", "labels", "text", "linked"),
    [
        ("hi", ["पान", "पानी", "पीना"], "मुझे पानी चाहिए", ["पानी"]),
        ("en", ["पान", "पानी", "पीना"], "मुझे पानी चाहिए", ["पानी"]),
        ("th", ["น้ำ", "นม"], "น้ำ", ["น้ำ"]),
        ("fa", ["کتاب"], "کتاب‌ها", ["کتاب"]),
        (
            "de",
            ["haus", "straße", "not"],
            "Die Häuser der Straßen in Not",
            ["haus", "straße", "not"],
        ),
        ("el", ["άνθρωπος"], "οι ΆΝΘΡΩΠΟΙ, ανθρώπους", ["άνθρωπος"]),
        ("sh", ["knjiga"], "knjige", ["knjiga"]),
        ("vi", ["nước"], "Nước", ["nước"]),
        ("zh", ["杯子"], "杯子在哪里？", []),
        ("zh", ["杯子"], "杯子，茶", ["杯子"]),
    ],
)
def test_words_are_those_of_the_script_and_lemmas_those_of_the_language(
    language: str, labels: list[str], text: str, linked: list[str]
) -> None:
    index = EntityIndex(labels, language=language)
    assert [labels[node] for node in index.link(text)] == linked


def test_an_emoji_is_no_word_and_what_chooses_its_look_no_mark() -> None:
    assert words_of("I ❤️ 2️⃣ dogs") == ["i", "2", "dogs"]


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    return TriplesGraph(path=str(write_triples(tmp_path)), relations="merged").read(
        SilentProgress()
    )


def test_a_subgraph_has_linked_nodes_those_between_two_and_all_edges_among_them(
    graph: KnowledgeGraph,
) -> None:
    at = {label: node for node, label in enumerate(graph.labels)}
    found = SubgraphFinder(graph, 200).candidates([at["dog"], at["bird"]], [at["tree"]])
    # park lies between dog and tree, animal between dog and bird; nothing else touches two.
    assert [graph.labels[n] for n in found.nodes] == ["animal", "bird", "dog", "park", "tree"]
    assert found.is_query.tolist() == [False, True, True, False, False]
    assert found.is_answer.tolist() == [False, False, False, False, True]
    assert found.n_linked.tolist() == [2, 1, 0, 2, 1]
    kept = SubgraphFinder(graph, 200).cut(found, np.zeros(5, np.float32))
    labels = [graph.labels[n] for n in kept.nodes]
    # Linked ones first, by linked neighbours, then by label.
    assert labels == ["bird", "tree", "dog", "animal", "park"]
    edges = {(labels[h], graph.relations[r], labels[t]) for h, r, t in kept.triples.tolist()}
    assert edges == {
        ("dog", "isa", "animal"),
        ("bird", "isa", "animal"),
        ("dog", "atlocation", "park"),
        ("bird", "atlocation", "tree"),
        ("tree", "partof", "park"),
    }
    assert len(kept.triples) == 5
    assert kept.n_cut == 0


def test_the_cut_keeps_linked_nodes_then_the_most_relevant_and_breaks_ties_by_label(
    graph: KnowledgeGraph,
) -> None:
    at = {label: node for node, label in enumerate(graph.labels)}
    finder = SubgraphFinder(graph, 4)
    found = finder.candidates([at["dog"], at["bird"]], [])
    assert [graph.labels[n] for n in found.nodes] == ["animal", "bird", "dog"]
    kept = finder.cut(found, np.array([9, 0, 1], np.float32))
    assert [graph.labels[n] for n in kept.nodes] == ["dog", "bird", "animal"]
    kept = SubgraphFinder(graph, 3).cut(found, np.zeros(3, np.float32))
    assert [graph.labels[n] for n in kept.nodes] == ["bird", "dog"]
    assert (kept.n_cut, len(kept.triples)) == (1, 0)
    assert kept.relevance.dtype == np.float32


def test_an_answers_entity_is_none_of_the_query_and_calls_do_not_touch_each_other(
    graph: KnowledgeGraph,
) -> None:
    at = {label: node for node, label in enumerate(graph.labels)}
    finder = SubgraphFinder(graph, 200)
    found = finder.candidates([at["dog"], at["dog"]], [at["dog"]])
    assert (found.is_query.tolist(), found.is_answer.tolist()) == ([False], [True])
    again = finder.candidates([at["dog"]], [at["dog"]])
    assert again.nodes.tolist() == found.nodes.tolist() == [at["dog"]]
    empty = finder.candidates([], [])
    assert len(empty) == 0
    assert len(finder.cut(empty, np.empty(0, np.float32)).nodes) == 0


def test_a_subgraph_equals_one_by_definition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (f"n{a:02}", f"r{r}", f"n{b:02}")
        for a, r, b in rng.integers(0, [30, 3, 30], size=(120, 3)).tolist()
    ]
    graph = TriplesGraph(path=str(write_triples(tmp_path, rows))).read(SilentProgress())
    joined: dict[str, set[str]] = {label: set() for label in graph.labels}
    for head, _, tail in rows:
        if head != tail:
            joined[head].add(tail)
            joined[tail].add(head)
    finder = SubgraphFinder(graph, 200)
    for linked in rng.integers(0, len(graph.labels), size=(20, 4)).tolist():
        names = {graph.labels[node] for node in linked}
        between = {label for label, others in joined.items() if len(others & names) >= 2}
        found = finder.candidates(linked[:2], linked[2:])
        assert {graph.labels[n] for n in found.nodes} == names | between
        kept = finder.cut(found, np.zeros(len(found), np.float32))
        labels = [graph.labels[n] for n in kept.nodes]
        edges = [(labels[h], graph.relations[r], labels[t]) for h, r, t in kept.triples.tolist()]
        inside = {(h, r, t) for h, r, t in rows if {h, t} <= names | between and h != t}
        assert len(edges) == len({*edges})
        assert {*edges} == inside
