"""A small model of each kind that reads texts with graphs, trained on one set of tables."""

from dataclasses import dataclass
from pathlib import Path

from permafrost.storage.artifacts import ArtifactStore
from tests.flows.experiments import run_in
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import save_model
from tests.stages.finetune.tiny_graphs import ENCODER
from tests.stages.graphs import small_tables

RELATION_WORDS = {"in": "was under the"}
"""Of the source; the name of the other relation is split."""
METHODS = {
    "full": {"kind": "gt2vec", "encoder": ENCODER},
    "beside": {"kind": "qa_gnn", "encoder": ENCODER},
    "words": {"kind": "text_only", "of": "description"},
    "plain": {"kind": "text_only"},
    "noise": {"kind": "qa_gnn", "encoder": ENCODER},
    "tuned": {"kind": "gt2vec", "encoder": ENCODER},
    "last": {"kind": "gt2vec", "encoder": ENCODER, "graph_token": "last"},
    "node readout": {"kind": "gt2vec", "encoder": ENCODER, "readout_text": "nodes"},
}
FURTHER = {"noise": {"node_features": "random"}, "tuned": {"train": {"kind": "lora"}}}


@dataclass(frozen=True)
class Trained:
    """A home with a model of each kind, and the tables that they were trained on."""

    home: Path
    tables: Path
    models: dict[str, str]
    scores: dict[str, Path]

    @property
    def graphs(self) -> str:
        """As --graphs takes it."""
        return f"{{kind: tables, nodes: {self.tables}/nodes.csv, edges: {self.tables}/edges.csv}}"


def train(made: Path) -> Trained:
    """Train the models in a folder."""
    source = small_tables.write(made / "tables") | {"relation_words": RELATION_WORDS}
    save_model("llama", made / "llama")
    save_model("bert", made / "bert")
    nodes = {"backbone": {"source": str(made / "bert"), "max_length": 16}}
    path, home, _ = run_in(
        made,
        {
            "name": "graphs",
            "backbone": {"source": str(made / "llama"), "max_length": 63},
            # What enters the blocks is stored for `last`, and computed where nothing is stored.
            "store_dtype": "float32",
            "tasks": {"rooms": source},
            "methods": {
                name: {
                    "kind": "graph_text",
                    "model": model,
                    "nodes": nodes,
                    "optim": {"lr": 0.01, "batch_size": 4, "max_epochs": 1},
                    **FURTHER.get(name, {}),
                }
                for name, model in METHODS.items()
            },
            "seeds": [0],
            "report": {"title": "Rooms"},
            "runtime": {"extract": {"device": "cpu"}},
        },
    )
    nodes_of = look(path, home).nodes
    artifacts = ArtifactStore(home)
    return Trained(
        home,
        made / "tables",
        {name: nodes_of.fits[name, "rooms", 0].id for name in METHODS},
        {name: artifacts.open(nodes_of.scores[name, "rooms", 0].ref) for name in METHODS},
    )
