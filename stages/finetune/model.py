"""The base classes of graph-text models: configs that build a module, which embeds texts with their graphs.

What a model needs is asked of its config, so that whoever builds it knows no kind. Axes: i items, c cases, d
width of an embedding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.finetune.losses.loss import AlignmentConfig
from permafrost.stages.finetune.token_place import TokenPlace
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    import torch

    from permafrost.stages.finetune.module import Embedded as Embedded
    from permafrost.stages.finetune.module import GraphTextModule as GraphTextModule
    from permafrost.stages.finetune.module import ItemBatch as ItemBatch
    from permafrost.stages.finetune.module import ModelFacts as ModelFacts

__getattr__ = late_names(__name__)

ReadoutText = Literal["backbone", "nodes"]
"""Whose vector of the text the readout of a graph reads: the backbone's, or that of the model that reads node
labels."""
Compared = Literal["branches", "token_and_text"]
"""The two embeddings of an item whose distance on dev is noted after every epoch."""
QueryNode = Literal["stored", "hidden"]
"""`hidden`: nothing of the text reaches the graph, neither the query's vector nor which nodes it names."""


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
    def reads_relevance(self) -> bool:
        """Whether its graph encoder asks for the relevance of nodes."""
        return False

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
    def n_branches(self) -> int:
        """Two, if descriptions are embedded beside graphs in training."""
        return 2 if self.reads_descriptions and not self.embeds_descriptions else 1

    @property
    def branch_weights(self) -> tuple[float, float]:
        """Of the task's loss of graph and text, and of description and text."""
        return (1.0, 1.0)

    @property
    def n_scorers(self) -> int:
        """How many scorers its branches have: one of each, or one that all share."""
        return 1

    @property
    def text_of_readout(self) -> ReadoutText:
        """Whose vector of the text its readout reads."""
        return "backbone"

    @property
    def compared(self) -> Compared:
        """What its distance on dev is between."""
        return "branches"

    @property
    def embeds_as_stored(self) -> bool:
        """Whether its embeddings are the backbone's own vectors, so that only a scorer, a map of them, or the
        backbone can be trained."""
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


GRAPH_TEXT_MODELS = Category(
    "graph-text model", GraphTextModel, "permafrost.stages.finetune.models"
)
GraphTextModelConfig = Annotated[GraphTextModel, GRAPH_TEXT_MODELS.field()]
"""Any graph-text model, by its `kind`."""


def default_graph_text_model() -> GraphTextModel:
    """GT2VEC with the paper's parts."""
    return GRAPH_TEXT_MODELS.validate({"kind": "gt2vec"})
