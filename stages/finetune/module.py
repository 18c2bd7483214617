"""What graph-text models build: modules that embed texts with their graphs, and score the embeddings.

Axes: i items, d width of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.finetune.model import GraphTextModel
from permafrost.stages.finetune.token_place import TokenPlace
from permafrost.stages.finetune.tuned import Tuned
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.heads.initialise import linear


@dataclass(frozen=True)
class ModelFacts:
    """What a model needs to know of corpus and features."""

    n_relations: int
    """Relations of edges."""
    d_labels: int
    """Width of the features of node labels; 0 if the model does not read them."""
    d_text: int
    """Width of a text's vector, of the backbone that reads texts."""
    d_token: int
    """Width of a graph token; 0 if the model does not run the backbone."""
    scores: bool
    """Whether the task's loss reads scores; if not, it reads the embeddings."""
    maps_embeddings: bool = False
    """Whether embeddings go through a linear map, which is trained."""


@dataclass(frozen=True)
class ItemBatch:
    """Items as a model reads them; None for what it did not ask for."""

    n_items: int
    graphs: GraphBatch | None
    texts: Callable[[], Tensor]
    """The backbone's vectors of the texts `[i, d]`: as stored, or of a pass where the backbone is trained."""
    described: Callable[[], Tensor] | None
    """The same of graphs in words with their texts."""
    states: Callable[[Tensor, TokenPlace], Tensor] | None
    """Runs the backbone over the texts with these graph tokens, and gives their vectors `[i, d]`."""


@dataclass(frozen=True)
class Embedded:
    """The embeddings of some items."""

    z: Float[Tensor, "i d"]
    """Of text and graph: what is evaluated."""
    described: Float[Tensor, "i d"] | None = None
    """Of text and description, GT2VEC's second branch."""

    @property
    def branches(self) -> tuple[Tensor, ...]:
        """One or both."""
        return (self.z,) if self.described is None else (self.z, self.described)


class GraphTextModule(nn.Module, ABC):
    """A model with its scorer, or the map of its embeddings. Of the backbone it has those parameters that are
    trained."""

    tuned: Tuned | None
    """What is trained of the backbone; whoever builds the model sets it."""

    def __init__(self, scorers: nn.ModuleList | None, z_map: nn.Linear | None = None) -> None:
        super().__init__()
        self.scorers, self.z_map, self.tuned = scorers, z_map, None

    @abstractmethod
    def forward(self, batch: ItemBatch) -> Embedded:
        """The embeddings of items; in training with the second branch, if there is one."""

    def mapped(self, z: Float[Tensor, "i d"]) -> Float[Tensor, "i d"]:
        """Vectors as embeddings: as they are, or through the map."""
        return z if self.z_map is None else self.z_map(z)

    def graph_tokens(self, batch: ItemBatch) -> Float[Tensor, "i d_token"] | None:
        """The token of each item's graph; None for a model without."""
        return None

    def score(self, z: Float[Tensor, "i d"], branch: int) -> Float[Tensor, " i"]:
        """The score of each item, by the scorer of a branch, or the one that all share."""
        assert self.scorers is not None, "this task's loss reads embeddings"
        scorer = self.scorers[min(branch, len(self.scorers) - 1)]
        return scorer(z).squeeze(1)

    def attention(self, batch: ItemBatch) -> Float[Tensor, " e_plus_n"] | None:
        """Attention on edges and nodes in the last layer of the graph encoder, for drawings."""
        return None

    @property
    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class Scorer(nn.Module):
    """One hidden layer with GELU, and a score."""

    def __init__(self, d_in: int, hidden: int, draw: torch.Generator) -> None:
        super().__init__()
        self.inner, self.outer = linear(d_in, hidden, draw), linear(hidden, 1, draw)

    def forward(self, z: Float[Tensor, "i d"]) -> Float[Tensor, "i 1"]:
        """The score of each embedding."""
        return self.outer(functional.gelu(self.inner(z)))


def scorers_of(
    config: GraphTextModel, d_z: int, facts: ModelFacts, draw: torch.Generator, n: int = 1
) -> nn.ModuleList | None:
    """Scorers of embeddings; None if the task's loss reads the embeddings themselves."""
    if not facts.scores:
        return None
    if config.scorer == "linear":
        return nn.ModuleList(linear(d_z, 1, draw) for _ in range(n))
    return nn.ModuleList(Scorer(d_z, config.scorer_hidden, draw) for _ in range(n))


def map_of(d_z: int, facts: ModelFacts) -> nn.Linear | None:
    """A linear map of embeddings without bias, the identity at first; None if the task trains none."""
    if not facts.maps_embeddings:
        return None
    layer = nn.Linear(d_z, d_z, bias=False, device="meta").to_empty(device="cpu")
    nn.init.eye_(layer.weight)
    return layer
