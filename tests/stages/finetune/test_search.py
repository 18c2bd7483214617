"""Documents ranked for the queries of several splits."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.finetune.cases import relevant_grades
from permafrost.stages.finetune.search import (
    _cosines,
    _ranked,
    all_documents,
    ndcg_at_10,
    searched,
    some_documents,
)
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from tests.stages.finetune.tiny_graphs import retrieval


def test_documents_are_embedded_once_for_all_splits() -> None:
    corpus = retrieval()
    table = torch.randn(corpus.items.num_rows, 5, generator=torch.Generator().manual_seed(0))
    asked: list[list[int]] = []

    def embed(items: NDArray[np.int64]) -> Tensor:
        asked.append(items.tolist())
        return table[torch.from_numpy(items)]

    both = searched(corpus, ("dev", "test"), all_documents(corpus), embed)
    assert asked.count([*corpus.documents]) == 1
    assert len(asked) == 3
    for split, found in both.items():
        (alone,) = searched(corpus, (split,), all_documents(corpus), embed).values()
        assert ndcg_at_10(found) == ndcg_at_10(alone)
        for one in found:
            units = torch.nn.functional.normalize(table.double(), dim=1)
            cosines = units[list(corpus.documents)] @ units[one.query]
            best = cosines.argsort(descending=True)[: len(one.documents)]
            assert one.documents.tolist() == [corpus.documents[i] for i in best.tolist()]


def test_a_document_graded_below_zero_counts_as_one_that_nobody_judged() -> None:
    base = retrieval()
    judged = base.judgements
    # Every test query also judges the first document to be worse than irrelevant.
    worse = judged.filter(pc.equal(judged.column("split"), "test"))
    at = worse.column_names
    worse = worse.set_column(at.index("grade"), "grade", pa.array([-1] * len(worse), pa.int64()))
    first = pa.array([base.documents[0]] * len(worse), worse.schema.field("document").type)
    worse = worse.set_column(at.index("document"), "document", first)
    both = replace(base, judgements=pa.concat_tables([judged, worse.cast(judged.schema)]))
    table = torch.randn(base.items.num_rows, 5, generator=torch.Generator().manual_seed(0))
    # Queries that find both their document and the first one.
    for row in judged.to_pylist():
        table[row["query"]] = table[row["document"]] + 1.5 * table[base.documents[0]]

    def score(corpus: GraphCorpus) -> float:
        documents = all_documents(corpus)
        found = searched(corpus, ("test",), documents, lambda items: table[torch.from_numpy(items)])
        return ndcg_at_10(found["test"])

    scores = [score(base), score(both)]
    assert scores[0] == scores[1]
    assert 0 < scores[0] < 1


def test_equal_documents_keep_their_order_wherever_they_stand() -> None:
    """A product computes its last columns otherwise, so that their cosines differ in the end."""
    draw, differ = np.random.default_rng(0), False
    for n in range(2, 80):
        units = draw.standard_normal((n, 130))
        units[[n // 2, n - 1]] = units[0]
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        for cosines in _cosines(draw.standard_normal((5, 130)), units):
            order = _ranked(cosines).tolist()
            same = [at for at in order if at in {0, n // 2, n - 1}]
            assert same == sorted({0, n // 2, n - 1})
            differ |= len({*cosines[same]}) > 1
    assert differ, "or there was nothing to settle"


@pytest.mark.parametrize("n_queries", [1, 63, 64, 65, 130])
def test_queries_are_ranked_in_blocks_as_one_by_one(n_queries: int) -> None:
    draw = np.random.default_rng(n_queries)
    documents, queries = draw.standard_normal((301, 33)), draw.standard_normal((n_queries, 33))
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, documents)]
    found = list(_cosines(*units))
    assert len(found) == n_queries
    for one, query in zip(found, units[0], strict=True):
        np.testing.assert_allclose(one, units[1] @ query, rtol=0, atol=1e-15)


@pytest.mark.parametrize("n_more", [-1, 0, 1, 2, 100])
def test_some_documents_are_those_that_are_judged_and_others_drawn_by_the_seed(n_more: int) -> None:
    corpus = retrieval()
    judged = {d for own in relevant_grades(corpus, "dev").values() for d in own}
    n_all = len(corpus.documents)
    assert 0 < len(judged) < n_all - 2
    some = some_documents(corpus, "dev", len(judged) + n_more, seed=3).tolist()
    assert judged <= set(some)
    assert len(some) == min(len(judged) + max(n_more, 0), n_all)
    assert some == [d for d in corpus.documents if d in set(some)], "in order, none twice"
    assert some == some_documents(corpus, "dev", len(judged) + n_more, seed=3).tolist()
    if n_more in (1, 2):
        of_seeds = {tuple(some_documents(corpus, "dev", len(some), seed)) for seed in range(20)}
        assert len(of_seeds) > 1
