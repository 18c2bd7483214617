"""The backbone's vectors, and a scorer on them."""

import torch

from permafrost.stages.finetune.models.text_only import TextOnly
from permafrost.stages.finetune.module import (
    Embedded,
    GraphTextModule,
    ItemBatch,
    ModelFacts,
    map_of,
    scorers_of,
)


class TextOnlyModule(GraphTextModule):
    """The backbone's vectors are the embeddings."""

    def __init__(self, config: TextOnly, facts: ModelFacts, draw: torch.Generator) -> None:
        super().__init__(scorers_of(config, facts.d_text, facts, draw), map_of(facts.d_text, facts))
        self.config = config

    def forward(self, batch: ItemBatch) -> Embedded:
        """As they are, or mapped."""
        read = batch.texts if self.config.of == "text" else batch.described
        assert read is not None
        return Embedded(self.mapped(read()))
