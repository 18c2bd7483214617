"""The module of GT2VEC: graph encoder, readout, adapter, and the backbone behind them."""

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.finetune.models.gt2vec import Gt2Vec
from permafrost.stages.finetune.module import (
    Embedded,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
    map_of,
    scorers_of,
)
from permafrost.stages.graph_encoders.adapter import Adapter
from permafrost.storage.errors import InputError


class Gt2VecModule(GraphTextModule):
    """Scorers; graph encoder, readout and adapter, if there is a graph token."""

    def __init__(self, config: Gt2Vec, facts: ModelFacts, draw: torch.Generator) -> None:
        super().__init__(
            scorers_of(config, facts.d_text, facts, draw, config.n_scorers),
            map_of(facts.d_text, facts),
        )
        self.config = config
        if config.token_place is not None:
            self.encoder = config.encoder.build(
                facts.d_labels, facts.d_text, facts.n_relations, draw
            )
            d_text = facts.d_labels if config.readout_text == "nodes" else facts.d_text
            self.readout = config.readout.build(self.encoder.d_out, d_text, draw)
            hidden = config.adapter_hidden
            self.adapter = Adapter(self.readout.d_out, facts.d_token, draw, hidden)
        if config.distance_of == "token_and_text" and facts.d_token != facts.d_text:
            raise InputError(
                f"distance_of is token_and_text, but a graph token of this backbone is {facts.d_token} wide "
                f"and a state {facts.d_text}, so that they have no distance; set distance_of: branches"
            )

    def graph_tokens(self, batch: ItemBatch) -> Float[Tensor, "i d_token"]:
        """One token for each item's graph."""
        assert batch.graphs is not None
        return self.adapter(self.readout(self.encoder(batch.graphs), batch.graphs))

    def forward(self, batch: ItemBatch) -> Embedded:
        """Through the backbone; z does not depend on the second branch."""
        place = self.config.token_place
        if place is None:
            return Embedded(self.mapped(batch.texts()))
        assert batch.states is not None
        z = self.mapped(batch.states(self.graph_tokens(batch), place))
        return Embedded(z, None if batch.described is None else self.mapped(batch.described()))

    def attention(self, batch: ItemBatch) -> Float[Tensor, " e_plus_n"] | None:
        """The encoder's."""
        if batch.graphs is None:
            return None
        return self.encoder.attention(batch.graphs)
