"""A training step of GT2VEC's graph attention: torch-geometric's `MessagePassing` over ours.

    OMP_NUM_THREADS=1 python -m benchmarks.graph_encoder [--graphs 40 --nodes 200 --edges 12] [--json]

A step is forward and backward of five layers, 256 wide with two attention heads, as in table 8 of the paper;
edges join random nodes of a graph, so many to a node, each with its inverse, under 38 relations. The
reference is that of the tests (tests/stages/graph_encoders/attention_reference.py), which computes f_r, f_k
and f_m edge by edge as the equations are printed, on the same weights; that outputs and gradients agree is
checked before anything is timed. Times are of the processor, the fairer clock on a machine that does other
work.
"""

import argparse
import time

import torch

from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.stages.graph_encoders.batch import QUERY_NODE, GraphBatch
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.kinds.relational_attention_module import (
    RelationalAttentionModule,
)
from tests.stages.graph_encoders.attention_reference import ReferenceEncoder

N_RELATIONS, D_NODES, D_QUERY, D_TEXT = 38, 384, 384, 4
TARGET = ">= 3"


def graphs(n_graphs: int, n_nodes: int, degree: int) -> GraphBatch:
    """Graphs of equal size whose nodes have `degree` edges each, half of them inverses."""
    draw = torch.Generator().manual_seed(0)
    n_edges = n_nodes * degree // 2
    starts = torch.arange(n_graphs) * n_nodes
    ends = torch.randint(n_nodes, (2, n_graphs, n_edges), generator=draw) + starts[:, None]
    source, target = ends.flatten(1)
    relation = torch.randint(N_RELATIONS // 2, (len(source),), generator=draw)
    types = torch.randint(3, (n_graphs * n_nodes,), generator=draw)
    types[starts] = QUERY_NODE
    return GraphBatch(
        features=torch.randn(n_graphs * n_nodes, D_NODES, generator=draw),
        query_features=torch.randn(n_graphs, D_QUERY, generator=draw),
        node_type=types,
        source=torch.cat([source, target]),
        target=torch.cat([target, source]),
        relation=torch.cat([relation, relation + N_RELATIONS // 2]),
        graph_of_node=torch.arange(n_graphs).repeat_interleave(n_nodes),
        query_node=starts,
        text_features=torch.zeros(n_graphs, D_TEXT),
    )


def measure(n_graphs: int, n_nodes: int, degree: int, rounds: int) -> Finding:
    """The ratio for one size of batch."""
    config = RelationalAttention(dropout=0)
    draw = torch.Generator().manual_seed(0)
    ours = config.build(D_NODES, D_QUERY, N_RELATIONS, draw)
    assert isinstance(ours, RelationalAttentionModule)
    versions: dict[str, torch.nn.Module] = {"ours": ours, "plain": ReferenceEncoder(ours)}
    batch = graphs(n_graphs, n_nodes, degree)

    def step(name: str) -> list[torch.Tensor]:
        out = versions[name](batch)
        return [out, *torch.autograd.grad(out.square().mean(), list(ours.parameters()))]

    for one, other in zip(step("ours"), step("plain"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    calls = {name: lambda name=name: step(name) for name in versions}
    times = interleaved(calls, rounds, clock=time.process_time)
    milliseconds = 1000 * min(times["ours"])
    return Finding(
        f"{n_graphs} graphs of {n_nodes} nodes, {degree} edges a node: plain / ours",
        ratio(times, "plain", "ours"),
        TARGET,
        f"{spread(times, 'plain', 'ours')}; ours {milliseconds:,.0f} ms",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, nargs="+", default=[32, 8])
    parser.add_argument("--nodes", type=int, nargs="+", default=[12, 200])
    parser.add_argument("--edges", type=int, nargs="+", default=[6, 12])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = zip(args.graphs, args.nodes, args.edges, strict=True)
    found = [measure(*size, args.rounds) for size in sizes]
    show("a training step of GT2VEC's graph attention", found, as_json=args.json)


if __name__ == "__main__":
    main()
