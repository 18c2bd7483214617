"""A graph network, alone or beside the text's vector."""

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.finetune.model import GraphTextModel
from permafrost.stages.finetune.module import (
    Embedded,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
    map_of,
    scorers_of,
)
from permafrost.stages.graph_encoders.encoder import GraphEncoderConfig
from permafrost.stages.graph_encoders.readout import GraphReadoutConfig


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
        super().__init__(scorers_of(config, d_z, facts, draw), map_of(d_z, facts))
        self.has_text, self.encoder, self.readout = has_text, network, pool

    def forward(self, batch: ItemBatch) -> Embedded:
        """Graphs, and texts beside them."""
        assert batch.graphs is not None
        g = self.readout(self.encoder(batch.graphs), batch.graphs)
        if not self.has_text:
            return Embedded(self.mapped(g))
        return Embedded(self.mapped(torch.cat([batch.texts(), g], dim=1)))

    def attention(self, batch: ItemBatch) -> Float[Tensor, " e_plus_n"] | None:
        """The encoder's."""
        assert batch.graphs is not None
        return self.encoder.attention(batch.graphs)
