"""GT2VEC's graph encoder: relation-aware attention over the edges of a graph.

Source: GT2VEC, section 3.1 and equations 1 to 4, and QA-GNN's released code, from which it descends. With h a
node, u its type, e a relation, s the source and v the target of an edge, for each of several layers

    r_sv = f_r(e_sv, u_s, u_v)              one MLP for all layers
    m_sv = f_m(h_s, u_s, r_sv)              linear
    q_s = f_q(h_s, u_s), k_sv = f_k(h_v, u_v, r_sv)         linear
    gamma_sv = q_s . k_sv / sqrt(width)     by attention head
    alpha_sv = softmax of gamma_sv over the edges that leave s, its loop among them
    h_v <- f_n(sum over s of alpha_sv m_sv) + h_v           f_n an MLP, with its dropout inside

Where we differ: the paper prints h_v and u_v in m_sv (`message: target`), by which a node would hear of its
neighbours through alpha only. What else it leaves open, and what QA-GNN does besides, is in
docs/decisions/0048-graph-encoders.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.graph_encoders.encoder import GraphEncoder

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import GraphModule


class RelationalAttention(GraphEncoder):
    """Attention over typed edges, with residual (GT2VEC)."""

    kind: Literal["relational_attention"] = "relational_attention"
    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of a node's vector, D (table 8: 256; FiQA 512)."""
    n_layers: int = Field(default=5, ge=1, le=MAX_LAYERS)
    """Table 8: 3 or 5."""
    heads: int = Field(default=2, ge=1, le=MAX_WIDTH)
    """Attention heads, each on its part of the width."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Inside f_n."""
    message: Literal["source", "target"] = "source"
    """Whose vector and type m_sv reads; the paper prints those of the target, QA-GNN reads the source's."""
    softmax: Literal["outgoing", "outgoing_times_degree", "incoming"] = "outgoing"
    """Over which edges alpha sums to 1: those that leave the source (equation 4), the same times their number
    as in QA-GNN's code, or those that arrive at the target."""
    scale: Literal["width", "head"] = "width"
    """gamma is divided by the root of the hidden width, as printed, or of a head's, as in QA-GNN."""
    norm: Literal["none", "batch"] = "none"
    """`batch`: batch normalisation in f_r and f_n, as in QA-GNN; vectors then depend on `train()` and
    `eval()`, and in training on the batch."""
    codes: Literal["learned", "one_hot"] = "learned"
    """How f_r reads relations and types: as learned vectors, or as 0 and 1 as in QA-GNN."""
    relevance: Literal["none", "score"] = "none"
    """`score`: u has a code of the node's relevance for the query besides its type, as in QA-GNN, but counted
    from 0, not from a score of the query alone."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> RelationalAttention:
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden is {self.hidden} and heads is {self.heads}; attention heads share the width, so "
                "hidden has to be a multiple of heads"
            )
        return self

    @property
    def reads_relevance(self) -> bool:
        """As given."""
        return self.relevance == "score"

    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """See `RelationalAttentionModule`."""
        from permafrost.stages.graph_encoders.kinds.relational_attention_module import (
            RelationalAttentionModule,
        )

        return RelationalAttentionModule(self, d_nodes, d_query, n_relations, draw)
