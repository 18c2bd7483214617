"""A scorer on the backbone's vectors, without graphs: the baseline that a graph has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.finetune.model import GraphTextModel

if TYPE_CHECKING:
    import torch

    from permafrost.stages.finetune.module import GraphTextModule, ModelFacts


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
        from permafrost.stages.finetune.models.text_only_module import TextOnlyModule

        return TextOnlyModule(self, facts, draw)
