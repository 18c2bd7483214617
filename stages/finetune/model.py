"""The base classes of graph-text models: configs that build a module, which embeds texts with their graphs.

What a model needs is asked of its config, so that whoever builds it knows no kind. Axes: i items, c cases, d
width of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.finetune.backbone_pass import TokenPlace
from permafrost.stages.finetune.graph_batches import QueryNode
from permafrost.stages.finetune.losses.loss import AlignmentConfig
from permafrost.stages.finetune.tuning import Tuned
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.heads.initialise import linear
from permafrost.stages.kinds import Category, Kind


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
    """A model with its scorer. Of the backbone it has those parameters that are trained."""

    tuned: Tuned | None
    """What is trained of the backbone; whoever builds the model sets it."""

    def __init__(self, scorers: nn.ModuleList | None) -> None:
        super().__init__()
        self.scorers, self.tuned = scorers, None

    @abstractmethod
    def forward(self, batch: ItemBatch) -> Embedded:
        """The embeddings of items; in training with the second branch, if there is one."""

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


class GraphTextModel(Kind, ABC):
    """The field `model` of a method of kind `graph_text`."""

    scorer: Literal["mlp", "linear"] = "mlp"
    """Of an embedding, for tasks that compare scores; `mlp` has one hidden layer with GELU."""
    scorer_hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of the hidden layer of `mlp`."""

    @property
    def reads_graphs(self) -> bool:
        """Whether it asks for graphs, and so for the features of their labels."""
        return True

    @property
    def query_node(self) -> QueryNode:
        """Whether a graph shows anything of the text."""
        return "stored"

    @property
    def token_place(self) -> TokenPlace | None:
        """Where it puts a graph token; None for a model that does not run the backbone."""
        return None

    @property
    def reads_backbone(self) -> bool:
        """Whether its embeddings depend on what the backbone makes of texts: if not, training the backbone
        changes nothing."""
        return True

    @property
    def reads_descriptions(self) -> bool:
        """Whether it asks for descriptions, in training or at all."""
        return False

    @property
    def embeds_as_stored(self) -> bool:
        """Whether its embeddings are the backbone's own vectors, so that only a scorer, or the backbone, can
        be trained."""
        return False

    @property
    def embeds_descriptions(self) -> bool:
        """Whether what it embeds, after training too, are descriptions."""
        return False

    @property
    def alignment(self) -> AlignmentConfig | None:
        """What holds its two branches together, if anything does."""
        return None

    @property
    def alignment_weight(self) -> float:
        """Lambda."""
        return 0.0

    @property
    def aligned(self) -> Literal["cases", "items"] | None:
        """What is aligned with each other: one item of a case (the right choice, the query), or all items of
        a batch. None: the cases of a multiple choice, else the items."""
        return None

    @abstractmethod
    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """Build the module, with weights drawn from `draw` (on the CPU), first those of its scorers: models
        of other kinds with embeddings of the same width begin with the same ones.

        Raises:
            InputError: the settings do not fit these widths.
        """

    def scorers(
        self, d_z: int, facts: ModelFacts, draw: torch.Generator, n: int = 1
    ) -> nn.ModuleList | None:
        """Scorers of embeddings; None if the task's loss reads the embeddings themselves."""
        if not facts.scores:
            return None
        if self.scorer == "linear":
            return nn.ModuleList(linear(d_z, 1, draw) for _ in range(n))
        return nn.ModuleList(Scorer(d_z, self.scorer_hidden, draw) for _ in range(n))


class Scorer(nn.Module):
    """One hidden layer with GELU, and a score."""

    def __init__(self, d_in: int, hidden: int, draw: torch.Generator) -> None:
        super().__init__()
        self.inner, self.outer = linear(d_in, hidden, draw), linear(hidden, 1, draw)

    def forward(self, z: Float[Tensor, "i d"]) -> Float[Tensor, "i 1"]:
        """The score of each embedding."""
        return self.outer(functional.gelu(self.inner(z)))


GRAPH_TEXT_MODELS = Category(
    "graph-text model", GraphTextModel, "permafrost.stages.finetune.models"
)
GraphTextModelConfig = Annotated[GraphTextModel, GRAPH_TEXT_MODELS.field()]
"""Any graph-text model, by its `kind`."""


def default_graph_text_model() -> GraphTextModel:
    """GT2VEC with the paper's parts."""
    return GRAPH_TEXT_MODELS.validate({"kind": "gt2vec"})
