"""Editing a kind, or what it builds, changes the keys of the nodes that use it, and of what is made from
them; no other key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.graph import Graph, Node
from permafrost.stages.fit.losses import LOSSES
from permafrost.stages.heads import HEADS
from permafrost.stages.heads.adapool_pooling import AdaPooling
from permafrost.stages.heads.glot_pooling import GlotPooling
from permafrost.stages.heads.graph.conv import CONVOLUTIONS
from permafrost.stages.heads.graph.graph_attention import GraphAttention
from permafrost.stages.heads.graph.graph_convolution import GraphConvolution
from permafrost.stages.heads.graph.graph_isomorphism import (
    GraphIsomorphism,
    PlainGraphIsomorphism,
)
from permafrost.stages.heads.graph.no_graph import TokenMap
from permafrost.stages.heads.mlp_pooling import MlpPooling
from permafrost.stages.heads.plain_poolings import MaxPooling
from permafrost.stages.heads.readout import ScorerPooling
from permafrost.stages.kinds import Category
from tests.flows.conftest import tiny_experiment
from tests.flows.editing import edit as edit
from tests.flows.experiments import pairs

CHOSEN: tuple[tuple[Category[Any], str, str], ...] = (
    (HEADS, "head", ""),
    (CONVOLUTIONS, "head", "conv"),
    (LOSSES, "loss", ""),
)
"""Where a fit's config names its kinds."""
KINDS = [(c, name, *where) for c, *where in CHOSEN for name in c.kinds()]
MODULES: tuple[tuple[type, str, str, str], ...] = (
    (AdaPooling, "adapool", "head", ""),
    (GlotPooling, "glot", "head", ""),
    (MaxPooling, "max", "head", ""),
    (MlpPooling, "mlp", "head", ""),
    (ScorerPooling, "scorer", "head", ""),
    (GraphAttention, "gat", "head", "conv"),
    (GraphConvolution, "gcn", "head", "conv"),
    (GraphIsomorphism, "gin", "head", "conv"),
    (PlainGraphIsomorphism, "gin_plain", "head", "conv"),
    (TokenMap, "linear", "head", "conv"),
)
"""What only one kind builds, and imports when it builds: the class, the kind, and where it is named."""
KEPT = ("glot", "scorer", "pyg", "contrastive")
"""Of each place some, in `make test`."""
EDITED = [
    *(
        pytest.param(c.kinds()[name], name, *where, marks=() if name in KEPT else pytest.mark.deep)
        for c, name, *where in KINDS
    ),
    *(pytest.param(*module, marks=pytest.mark.deep) for module in MODULES[1:]),
    MODULES[0],
]


@pytest.fixture(scope="module")
def file(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every head, convolution and loss, each once, and whole heads in a grid."""
    folder = tmp_path_factory.mktemp("kinds")
    splits = ("train", "dev", "test")
    files = {s: str(pairs(folder / f"{s}.parquet", 8, i)) for i, s in enumerate(splits)}
    tiny = tiny_experiment(tiny_bert)
    columns = {"text": "a", "text_pair": "b"}
    graded = {"kind": "similarity", **columns, "label": "score"}
    named = {"pyg_pool": "SoftmaxAggregation", "pyg": "SAGEConv"}
    heads = [{"kind": k} | ({"name": named[k]} if k in named else {}) for k in HEADS.kinds()]
    convs = [{"kind": k} | ({"name": named[k]} if k in named else {}) for k in CONVOLUTIONS.kinds()]
    heads += [{"kind": "glot", "conv": conv} for conv in convs]
    common = {"kind": "head", "layer": "hidden/2"}
    content = tiny | {
        "tasks": {
            "classes": tiny["tasks"]["ratio 0.2"],
            "graded": {"kind": "files", "files": files, "task": graded},
            "pairs": {"kind": "files", "files": files, "task": {"kind": "unlabelled", **columns}},
        },
        "methods": {
            **{
                f"head {i}": common | {"head": head, "tasks": ["classes"]}
                for i, head in enumerate(heads)
            },
            "grid": common
            | {"head": {"kind": "mean"}, "tasks": ["classes"], "grid": {"head": heads[:2]}},
            "graded": common | {"head": {"kind": "scorer"}, "tasks": ["graded"]},
            "partners": common
            | {"head": {"kind": "scorer"}, "loss": {"kind": "contrastive"}, "tasks": ["pairs"]},
        },
        "seeds": [0],
        "report": {"title": "Kinds", "x_axis": {"kind": "tasks"}},
    }
    path = folder / "kinds.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def chosen(node: Node, *where: str) -> str | None:
    """The name of the kind at a place of a fit's config."""
    value: Any = node.config
    for part in filter(None, where):
        value = value.get(part) if isinstance(value, dict) else None
    return value.get("kind") if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def graph(file: Path) -> Graph:
    """Before any edit."""
    return build_graph(load_experiment(file)).graph


@pytest.mark.few(2)
@pytest.mark.parametrize(("cls", "name", "field", "inner"), EDITED)
def test_an_edit_changes_its_own_nodes_and_what_is_made_from_them(
    file: Path,
    graph: Graph,
    edit: Callable[[type], None],
    cls: type,
    name: str,
    field: str,
    inner: str,
) -> None:
    before = {node.label: node.id for node in graph}
    assert len(before) == len(graph), "labels tell the nodes apart"
    own = {
        n.id
        for n in graph
        if n.stage == "fit" and field in n.config and chosen(n, field, inner) == name
    }
    assert own, "the experiment uses every kind"
    changed = set[str]()
    for node in graph.ordered():
        if node.id in own or changed.intersection(i.ref for i in node.inputs):
            changed.add(node.id)
    edit(cls)
    after = {node.label: node.id for node in build_graph(load_experiment(file)).graph}
    assert after.keys() == before.keys()
    assert {i for label, i in before.items() if after[label] != i} == changed
