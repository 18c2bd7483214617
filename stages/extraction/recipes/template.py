"""The text inside a prompt."""

from collections.abc import Sequence
from typing import Literal

from pydantic import field_validator
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.base import BaseRecipe
from permafrost.stages.extraction.recipes.encoded import Encoded
from permafrost.stages.extraction.recipes.filling import fill
from permafrost.stages.extraction.recipes.packing import pack
from permafrost.stages.extraction.recipes.slots import TEXT, require_slots, words_around


class PromptRecipe(BaseRecipe):
    """A prompt around the text; the span is the text's own tokens, never the prompt's words."""

    template: str
    """Contains {text} exactly once. Special tokens are added around it as around any text."""

    @field_validator("template")
    @classmethod
    def _has_one_slot(cls, template: str) -> str:
        return require_slots(template, TEXT)

    def encoded(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> Encoded:
        """Cuts the text, never the prompt."""
        words = words_around(self.instructed(self.template), TEXT)
        return pack([x.as_input() for x in fill(words, tokenizer, texts, max_length)])


class TemplateRecipe(PromptRecipe):
    """The text inside a prompt of the user's own."""

    kind: Literal["template"] = "template"
