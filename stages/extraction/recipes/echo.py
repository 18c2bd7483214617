"""Echo embeddings: the text is repeated, so that tokens of the second copy have seen all of it."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import field_validator
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.inputs import (
    FIRST,
    TEXT,
    Encoded,
    fill,
    pack,
    require_slots,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe


class EchoRecipe(Recipe):
    """Echo: the text twice inside a prompt; the span is the second copy.

    The words around the copies are ours; the paper tries several, with little difference.
    """

    kind: Literal["echo"] = "echo"
    says_text_twice: ClassVar[bool] = True
    template: str = "Say the same again. A sentence: {first} The same sentence: {text}"
    """Contains {first} and after it {text}, once each; both are filled with the text."""

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        return require_slots(template, FIRST, TEXT)

    def encoded(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> Encoded:
        """Cuts both copies at the same character."""
        words = words_around(self.instructed(self.template), FIRST, TEXT)
        return pack([x.as_input() for x in fill(words, tokenizer, texts, max_length)])
