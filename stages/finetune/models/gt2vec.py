"""GT2VEC: a graph as one token in front of the text, and the graph in words as a second branch.

Source: GT2VEC, section 2: g = readout(graph encoder), graph token = adapter(g), z = the backbone's vector of
`[graph token, <s>, tokens, </s>]`; D.1: both branches feed the task's loss, only graph + text is evaluated.
"""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from permafrost.stages.finetune.backbone_pass import TokenPlace
from permafrost.stages.finetune.losses.alignment import InfoNceAlignment
from permafrost.stages.finetune.losses.loss import AlignmentConfig
from permafrost.stages.finetune.model import (
    Embedded,
    GraphTextModel,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
)
from permafrost.stages.graph_encoders.adapter import Adapter
from permafrost.stages.graph_encoders.encoder import GraphEncoderConfig
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.readout import GraphReadoutConfig
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout


class Gt2Vec(GraphTextModel):
    """A graph token in front of the text, through the backbone."""

    kind: Literal["gt2vec"] = "gt2vec"
    encoder: GraphEncoderConfig = Field(default_factory=RelationalAttention)
    """What encodes a graph's nodes."""
    readout: GraphReadoutConfig = Field(default_factory=MeanReadout)
    """From the states of a graph's nodes to one vector."""
    graph_token: Literal["first", "last", "none"] = "first"
    """`last` is a variant of ours for causal decoders. `none` is the text-only probe, exactly."""
    description: Literal["trained", "none"] = "trained"
    """Whether there is a second branch, of graphs in words."""
    align: AlignmentConfig | None = Field(default_factory=InfoNceAlignment)
    """What holds the branches together; None, with `description: trained`, is one way to read the paper's
    "without alignment", `description: none` the other."""
    lam: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Lambda of equation 6."""
    align_over: Literal["auto", "cases", "items"] = "auto"
    """Which embeddings a batch aligns: one of each case (the right choice, the query), or all. `auto`: one of
    each question; in a retrieval queries and documents."""
    branch_scorers: Literal["shared", "own"] = "shared"
    """Whether both branches have the same scorer."""

    @model_validator(mode="after")
    def _branches_go_together(self) -> "Gt2Vec":
        if self.graph_token == "none" and self.description == "trained":
            raise ValueError(
                "graph_token is none, so that only the text is left, and description is trained; set "
                "description: none, or use a graph token"
            )
        return self

    @property
    def reads_graphs(self) -> bool:
        """With a graph token."""
        return self.graph_token != "none"

    @property
    def token_place(self) -> TokenPlace | None:
        """As given."""
        return None if self.graph_token == "none" else self.graph_token

    @property
    def embeds_as_stored(self) -> bool:
        """Without a graph token."""
        return self.graph_token == "none"

    @property
    def reads_descriptions(self) -> bool:
        """For the second branch."""
        return self.description == "trained"

    @property
    def alignment(self) -> AlignmentConfig | None:
        """As given, with two branches."""
        return self.align if self.reads_descriptions else None

    @property
    def alignment_weight(self) -> float:
        """As given."""
        return self.lam

    @property
    def aligned(self) -> Literal["cases", "items"] | None:
        """As given."""
        return None if self.align_over == "auto" else self.align_over

    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """See `Gt2VecModule`."""
        return Gt2VecModule(self, facts, draw)


class Gt2VecModule(GraphTextModule):
    """Scorers; graph encoder, readout and adapter, if there is a graph token."""

    def __init__(self, config: Gt2Vec, facts: ModelFacts, draw: torch.Generator) -> None:
        n_scorers = 2 if config.reads_descriptions and config.branch_scorers == "own" else 1
        super().__init__(config.scorers(facts.d_text, facts, draw, n_scorers))
        self.config = config
        if config.token_place is not None:
            self.encoder = config.encoder.build(
                facts.d_labels, facts.d_text, facts.n_relations, draw
            )
            self.readout = config.readout.build(self.encoder.d_out, facts.d_text, draw)
            self.adapter = Adapter(self.readout.d_out, facts.d_token, draw)

    def graph_tokens(self, batch: ItemBatch) -> Float[Tensor, "i d_token"]:
        """One token for each item's graph."""
        assert batch.graphs is not None
        return self.adapter(self.readout(self.encoder(batch.graphs), batch.graphs))

    def forward(self, batch: ItemBatch) -> Embedded:
        """Through the backbone; z does not depend on the second branch."""
        place = self.config.token_place
        if place is None:
            return Embedded(batch.texts())
        assert batch.states is not None
        z = batch.states(self.graph_tokens(batch), place)
        return Embedded(z, None if batch.described is None else batch.described())

    def attention(self, batch: ItemBatch) -> Float[Tensor, " e_plus_n"] | None:
        """The encoder's."""
        if batch.graphs is None:
            return None
        return self.encoder.attention(batch.graphs)
