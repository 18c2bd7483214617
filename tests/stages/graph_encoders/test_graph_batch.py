"""Graphs as tensors: which rows are query nodes, and the same batch in another precision."""

import torch

from tests.stages.graph_encoders.random_graphs import SIZES, make_graphs, padded


def test_query_nodes_are_known_and_padding_is_none_of_them():
    batch = padded(make_graphs(), 2)
    assert batch.n_graphs == len(SIZES)
    assert batch.n_nodes == sum(SIZES) + 2
    assert batch.is_query.nonzero()[:, 0].tolist() == [0, 5, 6, 10]


def test_a_batch_in_another_precision_keeps_its_whole_numbers():
    batch = make_graphs()
    half = batch.to("cpu", torch.bfloat16)
    assert {half.features.dtype, half.text_features.dtype, half.relevance.dtype} == {torch.bfloat16}
    assert half.source.dtype == half.relation.dtype == torch.int64
    assert torch.equal(half.source, batch.source)
    same = batch.to("cpu")
    assert same.features.dtype == torch.float64
    assert torch.equal(same.features, batch.features)
