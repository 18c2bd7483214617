"""Documents ranked for queries by the cosine of embeddings, and nDCG@10.

Source: BEIR, as pytrec_eval computes it: gain is the grade, none for one below 0, the discount
log2(rank + 1), and a query without a relevant document is not counted. Axes: q queries, d documents.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from permafrost.stages.finetune.cases import relevant_grades
from permafrost.stages.graphs.graph_corpus import GraphCorpus

DEPTH = 10
_AT_A_TIME = 64
"""Queries of one product."""
_DECIMALS = 12
"""Of similarities that are compared, in float64: those of equal documents differ by rounding, as a product
computes some columns otherwise than others."""


@dataclass(frozen=True)
class Search:
    """The documents that were found for one query."""

    query: int
    """Its item."""
    documents: NDArray[np.int64]
    """The first ten, best first: items."""
    similarities: NDArray[np.float64]
    grades: NDArray[np.int64]
    """Of these documents; 0 where nobody judged."""
    ideal: NDArray[np.int64]
    """The ten highest grades of the query, highest first."""

    @property
    def ndcg(self) -> float:
        """Gain over the highest possible one."""
        return _gain(self.grades) / _gain(self.ideal)


def _gain(grades: NDArray[np.int64]) -> float:
    return float((np.maximum(grades, 0) / np.log2(np.arange(len(grades)) + 2)).sum())


def all_documents(corpus: GraphCorpus) -> NDArray[np.int64]:
    """The items of all documents of a retrieval, in order."""
    return np.array(corpus.documents, np.int64)


def some_documents(corpus: GraphCorpus, split: str, n: int, seed: int) -> NDArray[np.int64]:
    """The items of all documents that are judged for queries of a split, and of as many others, drawn by a
    seed, as make up `n`, in order."""
    documents = all_documents(corpus)
    judged = {d for own in relevant_grades(corpus, split).values() for d in own}
    is_judged = np.isin(documents, list(judged))
    others = np.flatnonzero(~is_judged)
    n_more = min(max(n - int(is_judged.sum()), 0), len(others))
    drawn = np.random.default_rng(seed).choice(others, n_more, replace=False)
    return documents[np.sort(np.concatenate([np.flatnonzero(is_judged), drawn]))]


def searched(
    corpus: GraphCorpus,
    splits: Sequence[str],
    documents: NDArray[np.int64],
    embed: Callable[[NDArray[np.int64]], Tensor],
) -> dict[str, list[Search]]:
    """What queries of some splits find among documents; equal similarities, to 12 decimals, keep the
    documents' order.

    Args:
        corpus: a retrieval.
        splits: whose judgements count.
        documents: the items that are searched.
        embed: gives items their embeddings `[n, d]`, on the CPU; called once for the documents.
    """
    units = _units(embed(documents))
    return {split: _of_split(corpus, split, embed, documents, units) for split in splits}


def _of_split(
    corpus: GraphCorpus,
    split: str,
    embed: Callable[[NDArray[np.int64]], Tensor],
    documents: NDArray[np.int64],
    units: NDArray[np.float64],
) -> list[Search]:
    relevant = relevant_grades(corpus, split)
    queries = np.array(list(relevant), np.int64)
    found: list[Search] = []
    for query, cosines in zip(
        queries.tolist(), _cosines(_units(embed(queries)), units), strict=True
    ):
        best = _ranked(cosines)[:DEPTH]
        own = relevant[query]
        found.append(
            Search(
                query,
                documents[best],
                cosines[best],
                np.array([own.get(d, 0) for d in documents[best].tolist()]),
                np.array(sorted(own.values(), reverse=True)[:DEPTH]),
            )
        )
    return found


def _ranked(cosines: NDArray[np.float64]) -> NDArray[np.int64]:
    """The documents, best first; equal similarities keep their order."""
    return np.argsort(-cosines.round(_DECIMALS), kind="stable")


def _cosines(
    queries: NDArray[np.float64], documents: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    """Those of each query with all documents `[n_documents]`, some queries by one product."""
    for start in range(0, len(queries), _AT_A_TIME):
        yield from queries[start : start + _AT_A_TIME] @ documents.T


def _units(embeddings: Tensor) -> NDArray[np.float64]:
    return functional.normalize(embeddings.double(), dim=1).numpy()


def ndcg_at_10(found: Sequence[Search]) -> float:
    """The mean over queries."""
    return float(np.mean([one.ndcg for one in found]))
