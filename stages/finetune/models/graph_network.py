"""Graph networks, alone or beside the text's vector: `gnn_only` and `qa_gnn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from permafrost.stages.finetune.model import GraphTextModel, QueryNode
from permafrost.stages.graph_encoders.encoder import GraphEncoderConfig
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.readout import GraphReadoutConfig
from permafrost.stages.graph_encoders.readouts.attention import AttentionReadout
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout

if TYPE_CHECKING:
    import torch

    from permafrost.stages.finetune.module import GraphTextModule, ModelFacts


class _GraphNetwork(GraphTextModel):
    encoder: GraphEncoderConfig = Field(default_factory=RelationalAttention)
    """The graph network."""

    @property
    def reads_relevance(self) -> bool:
        """As its encoder does."""
        return self.encoder.reads_relevance


class GnnOnly(_GraphNetwork):
    """A graph network that sees nothing of the text: the query node starts from zeros and has no edges, and
    no type says which nodes the text names. A control: it must sit at chance wherever a graph alone cannot
    say what is right."""

    kind: Literal["gnn_only"] = "gnn_only"
    readout: GraphReadoutConfig = Field(default_factory=MeanReadout)
    """From the states of a graph's nodes to one vector."""

    @model_validator(mode="after")
    def _relevance_is_to_the_text(self) -> GnnOnly:
        if self.reads_relevance:
            raise ValueError(
                "encoder.relevance is score, but relevance is to the text, of which gnn_only sees nothing; "
                "set relevance: none"
            )
        return self

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
        from permafrost.stages.finetune.models.graph_network_module import GraphNetworkModule

        return GraphNetworkModule(self, self.encoder, self.readout, False, facts, draw)


class QaGnn(_GraphNetwork):
    """The text's vector beside the graph's, as QA-GNN reads out; with another encoder, such as RGCN, that
    baseline.

    The layers are those of `encoder`: GT2VEC's by default. QA-GNN's own are `softmax: outgoing_times_degree,
    scale: head, heads: 4, norm: batch, codes: one_hot`, and `relevance: score` where nodes are scored; it has
    no residual, which ours keep.
    """

    kind: Literal["qa_gnn"] = "qa_gnn"
    readout: GraphReadoutConfig = Field(default_factory=AttentionReadout)
    """From the states of a graph's nodes to one vector."""

    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """See `GraphNetworkModule`."""
        from permafrost.stages.finetune.models.graph_network_module import GraphNetworkModule

        return GraphNetworkModule(self, self.encoder, self.readout, True, facts, draw)
