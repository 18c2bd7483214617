"""Echo embeddings: the text is repeated, so that tokens of the second copy have seen all of it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import transformers
from pydantic import field_validator, model_validator

from permafrost.stages.extraction.recipes.inputs import (
    FIRST,
    TEXT,
    Encoded,
    fill,
    pack,
    require_slots,
    with_spelled_template,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe

SPELLINGS = {
    "asked": "Say the same again. A sentence: {first} The same sentence: {text}",
    "htp": "{first} {text}",
}


class EchoRecipe(Recipe):
    """Echo: the text twice inside a prompt; the span is the second copy.

    The words around the copies are ours, unless `spelling` says otherwise; Echo's paper tries several, with
    little difference.
    """

    kind: Literal["echo"] = "echo"
    later_fields: ClassVar[frozenset[str]] = Recipe.later_fields | {"spelling"}
    says_text_twice: ClassVar[bool] = True
    spelling: Literal["asked", "htp"] = "asked"
    """Which template to use if none is given: ours, which asks for the repetition, or HTP's (section 5.3),
    the text twice and nothing else, with the instruction once before it."""
    template: str = SPELLINGS["asked"]
    """Contains {first} and after it {text}, once each; both are filled with the text."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_template(cls, values: Any) -> Any:
        return with_spelled_template(values, SPELLINGS)

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        return require_slots(template, FIRST, TEXT)

    def encoded(
        self,
        tokenizer: "transformers.PreTrainedTokenizerBase",
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Cuts both copies at the same character."""
        words = words_around(self.instructed(self.template), FIRST, TEXT)
        return pack([x.as_input() for x in fill(words, tokenizer, texts, max_length)])
