"""The text inside a prompt: the user's own, or one that asks for its meaning in one word.

With the latter the readout is the token that would predict that word. Every template is a field, so that its
words are part of a store's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator, model_validator

from permafrost.stages.extraction.recipes.inputs import (
    TEXT,
    Encoded,
    fill,
    pack,
    require_slots,
    with_spelled_template,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe

if TYPE_CHECKING:
    import transformers


class PromptRecipe(Recipe):
    """A prompt around the text; the span is the text's own tokens, never the prompt's words."""

    template: str
    """Contains {text} exactly once. Special tokens are added to the filled template as to any text."""

    @field_validator("template")
    @classmethod
    def _has_one_slot(cls, template: str) -> str:
        return require_slots(template, TEXT)

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Cuts the text, never the prompt."""
        words = words_around(self.instructed(self.template), TEXT)
        return pack([x.as_input() for x in fill(words, tokenizer, texts, max_length)])


class TemplateRecipe(PromptRecipe):
    """The text inside a prompt of the user's own."""

    kind: Literal["template"] = "template"


QUOTED = 'This sentence : "{text}" means in one word:"'
SPELLINGS = {
    "quoted": QUOTED,
    "plain": "This sentence: {text} means in one word:",
    "htp": "The sentence means {text} in one word.",
    "htp_paragraph": "The paragraph {text} means in one word.",
}


class PromptEolRecipe(PromptRecipe):
    """PromptEOL: the meaning of a sentence in one word."""

    kind: Literal["prompt_eol"] = "prompt_eol"
    spelling: Literal["quoted", "plain", "htp", "htp_paragraph"] = "quoted"
    """Which template to use if none is given: PromptEOL's own, whose open quote asks for the word; the one
    without quotes that the Value Aggregation paper prints; or HTP's, of a sentence (its section 5.3) or of a
    paragraph (5.2)."""
    template: str = QUOTED
    """The prompt, with `{text}`."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_template(cls, values: Any) -> Any:
        return with_spelled_template(values, SPELLINGS)


class FutureEolRecipe(PromptRecipe):
    """FutureEOL, from the Value Aggregation paper: what comes after a text, in one word."""

    kind: Literal["future_eol"] = "future_eol"
    template: str = "Forecasting the subsequent tokens {text} in one word:"
    """The prompt, with `{text}`."""


class PretendedCotRecipe(PromptRecipe):
    """Pretended chain of thought: PromptEOL after steps of thought that are claimed, not taken."""

    kind: Literal["pretended_cot"] = "pretended_cot"
    template: str = 'After thinking step by step , this sentence : "{text}" means in one word:"'
    """The prompt, with `{text}`."""


class KnowledgeRecipe(PromptRecipe):
    """Knowledge enhancement: PromptEOL after a sentence on what carries meaning.

    The guidance is in our own words; the paper's are not the same.
    """

    kind: Literal["knowledge"] = "knowledge"
    template: str = (
        "What a sentence tells rests mostly on who acts and on the action, and only a little on the words "
        'that describe them. With this in mind , this sentence : "{text}" means in one word:"'
    )
    """The prompt, with `{text}`."""
