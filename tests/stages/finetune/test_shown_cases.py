"""Which test cases have their graphs kept, by number or by words, and what is kept of a search."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from permafrost.stages.finetune.cases import cases_of
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.graph_attention import graph_attention
from permafrost.stages.finetune.score import FinetuneScore, score_finetuned
from permafrost.stages.finetune.search import all_documents, searched
from permafrost.stages.finetune.shown_cases import ShownCase, picked_cases, shown_searches
from permafrost.stages.finetune.train import finetune
from permafrost.stages.finetune.trained import Finetuned
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.graph_text_fits import trainee
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs, questions, retrieval

Pairs = Callable[[str], Pair]
MARKS = {"place", "is_right", "is_answer"}


def picked(corpus: GraphCorpus, *words: str, n: int = 6) -> list[int]:
    config = FinetuneScoreConfig(n_graphs=n, graphs_of=words)
    return picked_cases(config, corpus).tolist()


def texts_of(corpus: GraphCorpus, case: int) -> list[str]:
    items = cases_of(corpus, "test").items[case]
    return [corpus.texts[t] for t in corpus.items.column("text").to_numpy()[items].tolist()]


def test_without_words_cases_are_spread_over_test() -> None:
    assert picked(pairs(), n=3) == [0, 2, 5]
    assert picked(pairs(), n=100) == [0, 1, 2, 3, 4, 5]
    assert picked(retrieval(), n=2) == [0, len(cases_of(retrieval(), "test")) - 1]


def test_words_choose_the_first_test_case_that_has_them() -> None:
    corpus = pairs()
    texts = [texts_of(corpus, case)[0] for case in range(6)]
    assert picked(corpus, texts[4].upper(), texts[1][2:]) == [4, 1]
    # Several have it; and a case that two of the words choose is kept once.
    assert picked(corpus, " and ") == [0]
    assert picked(corpus, texts[3], " and ", texts[3][:-1]) == [3, 0]


def test_words_may_be_of_any_choice_of_a_question_and_of_a_query() -> None:
    corpus = questions()
    last = [texts_of(corpus, case)[-1] for case in range(6)]
    for text in last:
        first = next(at for at in range(6) if any(text in t for t in texts_of(corpus, at)))
        assert picked(corpus, text) == [first]
    searches = retrieval()
    queries = [texts_of(searches, at)[0] for at in range(len(cases_of(searches, "test")))]
    assert picked(searches, queries[2], queries[0]) == [2, 0]


@pytest.mark.parametrize("words", ["no such words", "the "])
def test_words_that_no_test_text_has_are_refused(words: str) -> None:
    """Not even if a document has them, or a text of train."""
    corpus = retrieval()
    wanted = f"report.graphs_of: no test text has {words!r}; give words of one of the"
    with pytest.raises(InputError, match=wanted):
        picked(corpus, "never", words)
    trained = pairs({"train": 2, "dev": 2, "test": 2})
    cases = cases_of(trained, "train").items.data
    text = trained.texts[int(trained.items.column("text")[int(cases[1])].as_py())]
    with pytest.raises(InputError, match="the 2 test texts, the first of which is"):
        picked(trained, text)


def scored(corpus: GraphCorpus, pair: Pairs, *words: str) -> FinetuneScore:
    data = replace(data_of(corpus, pair("bert").backbone), live=None)
    config = config_of(corpus, {"kind": "gnn_only"})
    result = finetune(config, data, SilentProgress())
    tuned = Finetuned(config, result.facts, 0, result.best.dev_metric, result.state, ())
    return score_finetuned(FinetuneScoreConfig(graphs_of=words), tuned, data)


def test_graphs_of_chosen_cases_are_kept(pair: Pairs) -> None:
    corpus = questions()
    found = scored(corpus, pair, texts_of(corpus, 5)[0], texts_of(corpus, 2)[1]).graphs
    assert found is not None
    texts: dict[int, dict[str, None]] = {}
    for row in found.nodes.to_pylist():
        texts.setdefault(row["case"], {})[row["text"]] = None
    assert {case: [*some] for case, some in texts.items()} == {
        case: texts_of(corpus, case) for case in (5, 2)
    }


def test_an_item_that_a_case_has_twice_is_kept_at_both_places(pair: Pairs) -> None:
    """Two equal choices; or a query that is a document too."""
    data = replace(data_of(questions(), pair("bert").backbone), live=None)
    trained = trainee(config_of(data.corpus, {"kind": "gnn_only"}), data)
    trained.model.eval()
    case = ShownCase(0, np.array([1, 0, 1]), (True, False, False), (False, False, True))
    found = graph_attention(trained, data, [case])
    assert found is not None
    for table in (found.nodes, found.edges):
        rows = [[r for r in table.to_pylist() if r["place"] == at] for at in range(3)]
        assert [{r["item"] for r in some} for some in rows] == [{1}, {0}, {1}]
        same = [{k: v for k, v in r.items() if k not in MARKS} for r in rows[0]]
        assert same == [{k: v for k, v in r.items() if k not in MARKS} for r in rows[2]]
    verdicts = {r["place"]: (r["is_right"], r["is_answer"]) for r in found.nodes.to_pylist()}
    assert verdicts == {0: (True, False), 1: (False, False), 2: (False, True)}


def test_of_a_search_the_query_what_it_found_and_what_it_should_have(pair: Pairs) -> None:
    corpus = retrieval()
    found = scored(corpus, pair).graphs
    assert found is not None
    rows = {(r["case"], r["item"]): r for r in found.nodes.to_pylist()}
    numbers = list(dict.fromkeys(case for case, _ in rows))
    assert numbers == picked(corpus)
    tests = cases_of(corpus, "test")
    for number in numbers:
        (query, asked), *documents = [(i, r) for (case, i), r in rows.items() if case == number]
        own = tests.items[number].tolist()
        assert query == own[0]
        assert (asked["is_right"], asked["is_answer"]) == (False, False)
        assert [r["is_answer"] for _, r in documents] == [True, False][: len(documents)]
        assert [item for item, r in documents if r["is_right"]] == own[1:]
        assert len(documents) == 2 - documents[0][1]["is_right"]


def test_a_search_that_finds_a_relevant_document_first_shows_it_alone() -> None:
    corpus = retrieval()
    numbers = np.arange(len(cases_of(corpus, "test")))
    drawn = np.random.default_rng(1).normal(size=(len(corpus.items), 40))
    for at, (query, document) in enumerate(cases_of(corpus, "test").items[n] for n in numbers):
        if at % 2:
            drawn[query] = drawn[document]
    documents = all_documents(corpus)
    (found,) = searched(
        corpus, ("test",), documents, lambda items: torch.from_numpy(drawn[items])
    ).values()
    shown = shown_searches(corpus, found, numbers)
    assert [len(case.items) for case in shown][1::2] == [2] * len(numbers[1::2])
    for case in shown[1::2]:
        assert (case.are_right, case.are_answers) == ((False, True), (False, True))
