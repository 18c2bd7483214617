"""Parameters of the graph side at the sizes of the paper's table 8, by formula and as built."""

import pytest
import torch

from permafrost.stages.graph_encoders.adapter import Adapter
from permafrost.stages.graph_encoders.batch import N_NODE_TYPES, QUERY_NODE
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout
from permafrost.stages.graphs import node_types

LLM = 4096
"""Width of E5-Mistral, which embeds query and text and reads the token."""


def of_encoder(d: int, layers: int, relations: int, d_nodes: int) -> int:
    inputs = (d_nodes + 1) * d + (LLM + 1) * d
    codes = 4 * d + (relations + 1) * d + (3 * d + 1) * d + (d + 1) * d
    query, key, message, update = 2 * d + 1, 3 * d + 1, 3 * d + 1, 2 * (d + 1)
    return inputs + codes + layers * (query + key + message + update) * d


def of_readout(d: int) -> int:
    return (2 * d + LLM + 1) * d + (d + 1) * d


def of_adapter(d: int) -> int:
    return (d + 1) * d + (d + 1) * LLM


@pytest.mark.parametrize(
    ("data", "d", "layers", "relations", "d_nodes", "total"),
    [
        ("CommonsenseQA", 256, 3, 38, 1024, 5_918_976),
        ("OpenBookQA", 256, 5, 38, 1024, 7_232_256),
        ("MedQA-USMLE", 256, 5, 34, 768, 7_165_696),
        ("WebNLG", 256, 5, 748, 1024, 7_414_016),
        ("SciFact", 256, 3, 38, 1024, 5_918_976),
        ("FiQA", 512, 3, 38, 1024, 16_814_592),
    ],
)
def test_parameters_at_the_sizes_of_table_8(
    data: str, d: int, layers: int, relations: int, d_nodes: int, total: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    encoder = RelationalAttention(hidden=d, n_layers=layers).build(d_nodes, LLM, relations, draw)
    readout = MeanReadout().build(d, LLM, draw)
    adapter = Adapter(d, LLM, draw)
    counts = [sum(p.numel() for p in m.parameters()) for m in (encoder, readout, adapter)]
    print(f"{data}: encoder {counts[0]:,}, readout {counts[1]:,}, adapter {counts[2]:,}")  # noqa: T201
    assert counts == [of_encoder(d, layers, relations, d_nodes), of_readout(d), of_adapter(d)]
    assert sum(counts) == total
    assert encoder.n_parameters == counts[0]


def test_node_types_are_those_of_graph_corpora() -> None:
    assert len(node_types.NODE_TYPES) == N_NODE_TYPES
    assert node_types.QUERY_NODE == QUERY_NODE
