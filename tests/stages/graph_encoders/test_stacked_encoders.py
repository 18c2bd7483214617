"""GCN, GIN and RGCN equal torch-geometric's layers and loops over edges, outputs and gradients."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.kinds.gcn import GcnEncoder
from permafrost.stages.graph_encoders.kinds.gin import GinEncoder
from permafrost.stages.graph_encoders.kinds.pyg_relational import PygRelational
from permafrost.stages.graph_encoders.module import GraphModule
from permafrost.stages.heads.directed_draws import DirectedDraws
from tests.stages.graph_encoders.random_graphs import D_NODES, D_QUERY, N_RELATIONS, make_graphs

with warnings.catch_warnings():
    # torch-geometric 2.8.1 calls the deprecated torch.jit.script when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GCNConv, GINConv, GINEConv

Convolve = Callable[[GraphModule, Any, Tensor, GraphBatch], Tensor]


def index_of(batch: GraphBatch) -> Tensor:
    return torch.stack([batch.source, batch.target])


def shared(layer: nn.Module, **parameters: nn.Parameter) -> nn.Module:
    """A layer of torch-geometric whose parameters are ours."""
    for name, value in parameters.items():
        *path, last = name.split("__")
        setattr(layer.get_submodule(".".join(path)), last, value)
    return layer.double()


def gcn(module: Any, layer: Any, states: Tensor, batch: GraphBatch) -> Tensor:
    theirs = shared(GCNConv(8, 8), lin__weight=layer.linear.weight, bias=layer.linear.bias)
    return theirs(states, index_of(batch))


def gcn_added(module: Any, layer: Any, states: Tensor, batch: GraphBatch) -> Tensor:
    """Edge by edge."""
    edges = list(zip(*index_of(batch).tolist(), batch.relation.tolist(), strict=True))
    edges += [(node, node, N_RELATIONS) for node in range(batch.n_nodes)]
    degree = torch.zeros(batch.n_nodes).double()
    for _, target, _ in edges:
        degree[target] += 1
    out = [torch.zeros(8).double() for _ in range(batch.n_nodes)]
    for source, target, relation in edges:
        heard = torch.relu(states[source] + module.added[relation])
        out[target] = out[target] + heard / (degree[source] * degree[target]).sqrt()
    return layer.linear(torch.stack(out))


def with_perceptron(theirs: GINConv, layer: Any) -> GINConv:
    """Set afterwards: the constructor draws the weights of what it is given anew."""
    theirs.nn = nn.Sequential(layer.perceptron.first, nn.GELU(), layer.perceptron.second)
    return theirs


def gin(module: Any, layer: Any, states: Tensor, batch: GraphBatch) -> Tensor:
    return with_perceptron(GINConv(nn.Linear(8, 8)), layer)(states, index_of(batch))


def gin_added(module: Any, layer: Any, states: Tensor, batch: GraphBatch) -> Tensor:
    theirs = with_perceptron(GINEConv(nn.Linear(8, 8)), layer)
    return theirs(states, index_of(batch), edge_attr=module.added[batch.relation])


def rgcn(module: Any, layer: Any, states: Tensor, batch: GraphBatch) -> Tensor:
    """A node's own map, and for every relation the mean over the edges that arrive; with bases, the map of a
    relation is a sum of theirs, with blocks it has them on its diagonal."""
    weights, root, bias = (getattr(layer.layer.layer, n) for n in ("weight", "root", "bias"))
    if layer.layer.layer.num_bases is not None:
        weights = torch.einsum("rb,bio->rio", layer.layer.layer.comp, weights)
    if layer.layer.layer.num_blocks is not None:
        weights = torch.stack([torch.block_diag(*blocks) for blocks in weights])
    edges = list(zip(*index_of(batch).tolist(), batch.relation.tolist(), strict=True))
    out = []
    for node in range(batch.n_nodes):
        row = states[node] @ root + bias
        for relation in range(N_RELATIONS):
            heard = [
                states[s] @ weights[relation] for s, t, r in edges if (t, r) == (node, relation)
            ]
            if heard:
                row = row + torch.stack(heard).mean(dim=0)
        out.append(row)
    return torch.stack(out)


@pytest.mark.parametrize("residual", ["add", "none"])
@pytest.mark.parametrize(
    ("config", "convolve"),
    [
        (GcnEncoder(), gcn),
        (GcnEncoder(relations="added"), gcn_added),
        (GinEncoder(), gin),
        (GinEncoder(relations="added"), gin_added),
        (PygRelational(name="RGCNConv"), rgcn),
        (PygRelational(name="RGCNConv", args={"num_bases": 30}), rgcn),
        (PygRelational(name="FastRGCNConv", args={"num_blocks": 4}), rgcn),
    ],
    ids=["gcn", "gcn_added", "gin", "gin_added", "rgcn", "rgcn_30_bases", "rgcn_4_blocks"],
)
def test_it_equals_torch_geometric_or_loops_with_gradients(
    config: Any, convolve: Convolve, residual: str
) -> None:
    fields = {"hidden": 8, "n_layers": 2, "dropout": 0.3, "residual": residual}
    module = config.model_copy(update=fields).build(
        D_NODES, D_QUERY, N_RELATIONS, torch.Generator().manual_seed(2)
    )
    module, batch = module.double().train(), make_graphs()
    found = module(batch)
    states = module.inputs(batch)
    draw = torch.Generator().manual_seed(module.draws.seed + 1)
    for layer in module.layers:
        new = functional.gelu(convolve(module, layer, states, batch))
        with DirectedDraws(draw):
            new = functional.dropout(new, 0.3)
        states = states + new if residual == "add" else new
    torch.testing.assert_close(found, states, rtol=0, atol=1e-10)
    parameters = dict(module.named_parameters())
    gradients = [
        torch.autograd.grad(out.square().sum(), list(parameters.values()), allow_unused=True)
        for out in (found, states)
    ]
    for name, one, other in zip(parameters, *gradients, strict=True):
        assert one is not None, name
        assert float(one.abs().max()) > 0, name
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
