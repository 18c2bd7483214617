"""The test cases whose graphs are kept with the attention in them, for drawings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.finetune.cases import Cases, cases_of, relevant_grades
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.metrics.vector_map import spread_evenly
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.finetune.search import Search


@dataclass(frozen=True)
class ShownCase:
    """A case and what a model answered."""

    number: int
    """Among the test cases; of a search among its queries."""
    items: NDArray[np.int64]
    """Of a question its choices; of a search the query, the document found first and, if that is not
    relevant, the most relevant one."""
    are_right: tuple[bool, ...]
    """Of each item, whether it is the right choice, of class 1, or a relevant document."""
    are_answers: tuple[bool, ...]
    """Of each item, whether the model chose it, answered with class 1, or found it first."""


def picked_cases(config: FinetuneScoreConfig, corpus: GraphCorpus) -> NDArray[np.int64]:
    """Numbers of test cases, of a search of its queries: the first one with each of the given words, whatever
    their case; without words as many as are kept, spread evenly.

    Raises:
        InputError: no test text has some of the words.
    """
    texts = _test_texts(corpus)
    if not config.graphs_of:
        return spread_evenly(len(texts), config.n_graphs)
    folded = [[text.casefold() for text in of_case] for of_case in texts]
    found: dict[int, None] = {}
    for words in config.graphs_of:
        sought = words.casefold()
        having = (
            at for at, of_case in enumerate(folded) if any(sought in text for text in of_case)
        )
        if (first := next(having, None)) is None:
            raise InputError(
                f"report.graphs_of: no test text has {quoted(words)}; give words of one of the {len(texts)} "
                f"test texts, the first of which is {quoted(texts[0][0])}"
            )
        found[first] = None
    return np.array([*found], np.int64)


def _test_texts(corpus: GraphCorpus) -> list[list[str]]:
    """The texts of each test case; of a search that of each query."""
    text_of = corpus.items.column("text").to_numpy()
    if corpus.task == "unlabelled":
        items = [np.array([query]) for query in relevant_grades(corpus, "test")]
    else:
        cases = cases_of(corpus, "test")
        items = [cases.items[at] for at in range(len(cases))]
    return [[corpus.texts[int(text)] for text in text_of[some]] for some in items]


def shown_answers(
    cases: Cases, numbers: NDArray[np.int64], answers: NDArray[np.int64], *, are_choices: bool
) -> list[ShownCase]:
    """Cases that are answered with a choice or a class.

    Args:
        cases: of test.
        numbers: of those that are shown.
        answers: to all of them.
        are_choices: whether items are choices; else an item has a class.
    """
    shown: list[ShownCase] = []
    for number in numbers.tolist():
        items = cases.items[number]
        wanted = np.arange(len(items)) if are_choices else np.ones(1, np.int64)
        right, given = (tuple((wanted == of[number]).tolist()) for of in (cases.labels, answers))
        shown.append(ShownCase(number, items, right, given))
    return shown


def shown_searches(
    corpus: GraphCorpus, found: Sequence["Search"], numbers: NDArray[np.int64]
) -> list[ShownCase]:
    """Searches of test."""
    grades = relevant_grades(corpus, "test")
    shown: list[ShownCase] = []
    for number in numbers.tolist():
        search = found[number]
        first, own = int(search.documents[0]), grades[search.query]
        is_found = own.get(first, 0) > 0
        items, right, given = [search.query, first], [False, is_found], [False, True]
        if not is_found:
            items.append(max(own, key=lambda document: own[document]))
            right.append(True)
            given.append(False)
        shown.append(ShownCase(number, np.array(items), tuple(right), tuple(given)))
    return shown
