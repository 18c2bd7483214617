"""The settings that encoders of stacked convolutions have in common."""

from abc import ABC
from typing import Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.graph_encoders.encoder import GraphEncoder


class StackedEncoder(GraphEncoder, ABC):
    """Convolutions of one kind on top of each other."""

    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of a node's vector."""
    n_layers: int = Field(default=5, ge=1, le=MAX_LAYERS)
    """Number of convolutions."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """After each convolution."""
    residual: Literal["add", "none"] = "add"
    """`add`: each convolution is added to what it read."""


class NeighbourEncoder(StackedEncoder, ABC):
    """Sums over the neighbours of each node, with or without their relations."""

    relations: Literal["ignored", "added"] = "ignored"
    """`added`: a node hears ReLU(h + e) of a neighbour, with a learned vector e for each relation, as in
    torch-geometric's GINEConv."""
