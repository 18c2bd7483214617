"""An experiment whose readout reads texts as the model of node labels has them."""

from pathlib import Path
from typing import Any

import pytest

from tests.flows.experiments import run_in
from tests.flows.looked import look
from tests.flows.test_graph_text_experiment import FULL, SOURCE
from tests.stages.extraction.tiny_models import save_model


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [True, False])
def test_texts_are_extracted_by_the_model_of_nodes_too(tmp_path: Path, own: bool) -> None:
    """With a backbone of their own, and by the experiment's backbone, read at another place."""
    (tmp_path / "tiny_graphs_source.py").write_text(SOURCE)
    for family in ("llama", "bert"):
        save_model(family, tmp_path / family)
    nodes = {"backbone": {"source": str(tmp_path / "bert"), "max_length": 50}} if own else {}
    optim = {"lr": 0.01, "batch_size": 6, "max_epochs": 1}
    method: dict[str, Any] = {"kind": "graph_text", "optim": optim, "nodes": nodes}
    experiment = {
        "plugins": [str(tmp_path / "tiny_graphs_source.py")],
        "name": "texts",
        "backbone": {"source": str(tmp_path / "llama"), "max_length": 50},
        "store_dtype": "float32",
        "tasks": {"pairs": {"kind": "tiny_graphs"}},
        "methods": {
            "nodes": {**method, "model": {**FULL, "description": "none", "readout_text": "nodes"}}
        },
        "seeds": [0],
        "report": {"title": "Texts"},
        "runtime": {"extract": {"device": "cpu"}},
    }
    (tmp_path / "run").mkdir()
    path, home, result = run_in(tmp_path / "run", experiment)
    assert result.computed["finetune"] == result.computed["score"] == 1
    dag = look(path, home)
    fit = dag.nodes.fits["nodes", "pairs", 0]
    refs = {i.name: i.ref for i in fit.inputs if i.ref.startswith("features/")}
    assert refs.keys() == {"features", "label_features", "node_text_features"}
    assert refs["node_text_features"] == refs["label_features"] != refs["features"]
    assert any(node.label == "extract pairs texts for nodes" for node in dag.nodes.graph) or not own
