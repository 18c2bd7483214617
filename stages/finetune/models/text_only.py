"""A scorer on the backbone's vectors, without graphs: the baseline that a graph has to beat."""

from typing import Literal

import torch

from permafrost.stages.finetune.model import (
    Embedded,
    GraphTextModel,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
)


class TextOnly(GraphTextModel):
    """A scorer on the backbone's vector of the text, or of the graph in words with its text (GT2VEC, tables 5
    and 9). In a retrieval on a frozen backbone nothing is trained: documents are ranked by the cosine of its
    own vectors, zero-shot."""

    kind: Literal["text_only"] = "text_only"
    of: Literal["text", "description"] = "text"
    """The text, or the graph in words with its text."""

    @property
    def reads_graphs(self) -> bool:
        """No."""
        return False

    @property
    def reads_descriptions(self) -> bool:
        """If it reads nothing else."""
        return self.of == "description"

    @property
    def embeds_as_stored(self) -> bool:
        """Yes."""
        return True

    @property
    def embeds_descriptions(self) -> bool:
        """If it reads nothing else."""
        return self.reads_descriptions

    def build(self, facts: ModelFacts, draw: torch.Generator) -> GraphTextModule:
        """See `TextOnlyModule`."""
        return TextOnlyModule(self, facts, draw)


class TextOnlyModule(GraphTextModule):
    """The backbone's vectors are the embeddings."""

    def __init__(self, config: TextOnly, facts: ModelFacts, draw: torch.Generator) -> None:
        super().__init__(config.scorers(facts.d_text, facts, draw))
        self.config = config

    def forward(self, batch: ItemBatch) -> Embedded:
        """As they are."""
        read = batch.texts if self.config.of == "text" else batch.described
        assert read is not None
        return Embedded(read())
