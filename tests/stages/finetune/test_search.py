"""Documents ranked for the queries of several splits."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.finetune.search import ndcg_at_10, searched
from tests.stages.finetune.tiny_graphs import retrieval


def test_documents_are_embedded_once_for_all_splits() -> None:
    corpus = retrieval()
    table = torch.randn(corpus.items.num_rows, 5, generator=torch.Generator().manual_seed(0))
    asked: list[list[int]] = []

    def embed(items: NDArray[np.int64]) -> Tensor:
        asked.append(items.tolist())
        return table[torch.from_numpy(items)]

    both = searched(corpus, ("dev", "test"), embed)
    assert asked.count([*corpus.documents]) == 1
    assert len(asked) == 3
    for split, found in both.items():
        (alone,) = searched(corpus, (split,), embed).values()
        assert ndcg_at_10(found) == ndcg_at_10(alone)
        for one in found:
            units = torch.nn.functional.normalize(table.double(), dim=1)
            cosines = units[list(corpus.documents)] @ units[one.query]
            best = cosines.argsort(descending=True)[: len(one.documents)]
            assert one.documents.tolist() == [corpus.documents[i] for i in best.tolist()]
