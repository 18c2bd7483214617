"""GT2VEC: a graph as one token in front of the text, and the graph in words as a second branch.

Source: GT2VEC, section 2: g = readout(graph encoder), graph token = adapter(g), z = the backbone's vector of
`[graph token, <s>, tokens, </s>]`; D.1: both branches feed the task's loss, only graph + text is evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.finetune.losses.alignment import InfoNceAlignment
from permafrost.stages.finetune.losses.loss import AlignmentConfig
from permafrost.stages.finetune.model import Compared, GraphTextModel, ReadoutText
from permafrost.stages.finetune.token_place import TokenPlace
from permafrost.stages.graph_encoders.encoder import GraphEncoderConfig
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.readout import GraphReadoutConfig
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout

if TYPE_CHECKING:
    import torch

    from permafrost.stages.finetune.module import GraphTextModule, ModelFacts


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
    graph_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Of the task's loss of graph and text, in equation 6."""
    description_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Of the task's loss of description and text."""
    readout_text: ReadoutText = "backbone"
    """Whose vector of the text the readout reads: the backbone's own, from the store, or, with `nodes`, that
    of the model that reads node labels."""
    adapter_hidden: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width of the adapter's hidden layer; None for that of the graph's vector."""
    distance_of: Compared = "branches"
    """The embeddings whose distance on dev is noted after every epoch (figure 3c): those of the two branches,
    or, with `token_and_text`, the graph token and the mean state of the text alone over its recipe's span."""

    @model_validator(mode="after")
    def _branches_go_together(self) -> Gt2Vec:
        if self.graph_token == "none" and self.description == "trained":
            raise ValueError(
                "graph_token is none, so that only the text is left, and description is trained; set "
                "description: none, or use a graph token"
            )
        return self

    @model_validator(mode="after")
    def _the_token_has_its_settings(self) -> Gt2Vec:
        given = {
            "readout_text": self.readout_text != "backbone",
            "adapter_hidden": self.adapter_hidden is not None,
            "distance_of": self.distance_of != "branches",
        }
        if self.graph_token == "none" and (names := [name for name in given if given[name]]):
            values = ", ".join(f"{name} is {getattr(self, name)}" for name in names)
            raise ValueError(
                f"{values}, but graph_token is none, so that there is neither readout nor adapter nor token; "
                f"leave {' and '.join(names)} out, or use a graph token"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_of_two_branches(self) -> Gt2Vec:
        weights = f"graph_weight is {self.graph_weight:g} and description_weight {self.description_weight:g}"
        if self.description == "none" and self.branch_weights != (1.0, 1.0):
            raise ValueError(
                f"{weights}, but description is none, so that there is one branch, whose weight would only "
                "scale the loss; leave both out"
            )
        if self.branch_weights == (0.0, 0.0):
            raise ValueError(f"{weights}, so that the task has no loss; give one of them a weight")
        return self

    @property
    def reads_graphs(self) -> bool:
        """With a graph token."""
        return self.graph_token != "none"

    @property
    def reads_relevance(self) -> bool:
        """As its encoder does, with a graph token."""
        return self.reads_graphs and self.encoder.reads_relevance

    @property
    def token_place(self) -> TokenPlace | None:
        """As given."""
        return None if self.graph_token == "none" else self.graph_token

    @property
    def branch_weights(self) -> tuple[float, float]:
        """As given."""
        return self.graph_weight, self.description_weight

    @property
    def n_scorers(self) -> int:
        """As given, with two branches."""
        return 2 if self.reads_descriptions and self.branch_scorers == "own" else 1

    @property
    def text_of_readout(self) -> ReadoutText:
        """As given."""
        return self.readout_text

    @property
    def compared(self) -> Compared:
        """As given."""
        return self.distance_of

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
        from permafrost.stages.finetune.models.gt2vec_module import Gt2VecModule

        return Gt2VecModule(self, facts, draw)
