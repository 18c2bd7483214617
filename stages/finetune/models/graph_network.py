"""Graph networks, alone or beside the text's vector: `gnn_only` and `qa_gnn`."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from permafrost.stages.finetune.graph_batches import QueryNode
from permafrost.stages.finetune.model import (
    Embedded,
    GraphTextModel,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
)
from permafrost.stages.graph_encoders.encoder import GraphEncoderConfig
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.readout import GraphReadoutConfig
from permafrost.stages.graph_encoders.readouts.attention import AttentionReadout
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout


class _GraphNetwork(GraphTextModel):
    encoder: GraphEncoderConfig = Field(default_factory=RelationalAttention)
    """The graph network."""


class GnnOnly(_GraphNetwork):
    """A graph network that sees nothing of the text: the query node starts from zeros and has no edges, and
    no type says which nodes the text names. A control: it must sit at chance wherever a graph alone cannot
    say what is right."""

    kind: Literal["gnn_only"] = "gnn_only"
    readout: GraphReadoutConfig = Field(default_factory=MeanReadout)
    """From the states of a graph's nodes to one vector."""

    @property
    def query_node(self) -> QueryNode:
        """Nothing of the text reaches the graph."""
        return "hidden"

    @property
    def reads_backbone(self) -> bool:
        """No."""
        return False

    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """See `GraphNetworkModule`."""
        return GraphNetworkModule(self, self.encoder, self.readout, False, facts, draw)


class QaGnn(_GraphNetwork):
    """The text's vector beside the graph's (QA-GNN); with another encoder, such as RGCN, that baseline."""

    kind: Literal["qa_gnn"] = "qa_gnn"
    readout: GraphReadoutConfig = Field(default_factory=AttentionReadout)
    """From the states of a graph's nodes to one vector."""

    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """See `GraphNetworkModule`."""
        return GraphNetworkModule(self, self.encoder, self.readout, True, facts, draw)


class GraphNetworkModule(GraphTextModule):
    """Graph encoder and readout; the embedding is the graph's vector, after the text's if `has_text`."""

    def __init__(
        self,
        config: GraphTextModel,
        encoder: GraphEncoderConfig,
        readout: GraphReadoutConfig,
        has_text: bool,
        facts: ModelFacts,
        draw: torch.Generator,
    ) -> None:
        network = encoder.build(facts.d_labels, facts.d_text, facts.n_relations, draw)
        pool = readout.build(network.d_out, facts.d_text, draw)
        d_z = pool.d_out + (facts.d_text if has_text else 0)
        super().__init__(config.scorers(d_z, facts, draw))
        self.has_text, self.encoder, self.readout = has_text, network, pool

    def forward(self, batch: ItemBatch) -> Embedded:
        """Graphs, and texts beside them."""
        assert batch.graphs is not None
        g = self.readout(self.encoder(batch.graphs), batch.graphs)
        if not self.has_text:
            return Embedded(g)
        return Embedded(torch.cat([batch.texts(), g], dim=1))

    def attention(self, batch: ItemBatch) -> Float[Tensor, " e_plus_n"] | None:
        """The encoder's."""
        assert batch.graphs is not None
        return self.encoder.attention(batch.graphs)
