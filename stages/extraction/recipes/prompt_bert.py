"""PromptBERT: the text inside a prompt with a mask, which stands for its meaning in one word.

Source: Jiang et al., PromptBERT: Improving BERT Sentence Embeddings with Prompts, EMNLP 2022; a row of GLOT's
table 13, which prints no wording. We leave out its template denoising and its contrastive training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import field_validator

from permafrost.stages.extraction.recipes.inputs import (
    TEXT,
    Encoded,
    Filled,
    TextInput,
    between,
    fill,
    pack,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import transformers

MASK = "{mask}"


class PromptBertRecipe(Recipe):
    """PromptBERT, for encoders; the span is the mask alone, so that `mean` and heads read its state."""

    kind: Literal["prompt_bert"] = "prompt_bert"
    template: str = 'This sentence : "{text}" means {mask} .'
    """Contains {text} and {mask}, once each, in any order."""

    @field_validator("instruction")
    @classmethod
    def _has_no_mask(cls, instruction: str | None) -> str | None:
        if instruction is not None and MASK in instruction:
            raise ValueError(
                f"{quoted(instruction)} contains {MASK}, which has a meaning in the template alone; the only "
                f"slot of an instruction is {TEXT}"
            )
        return instruction

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        for slot in (TEXT, MASK):
            if template.count(slot) != 1:
                raise ValueError(
                    f"{quoted(template)} contains {slot} {template.count(slot)} times; it has to contain it "
                    "once"
                )
        return template

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """See `Recipe.definite`; a decoder's mask would not see what comes after it, nor was it trained."""
        if sizes.is_decoder:
            raise InputError(
                "the recipe prompt_bert reads the state of a mask, which decoders are not trained on; use "
                "prompt_eol"
            )
        return super().definite(sizes)

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Cuts the text, never the prompt.

        Raises:
            InputError: the tokenizer has no mask; see also `fill`.
        """
        mask = tokenizer.mask_token
        if not isinstance(mask, str):
            raise InputError(
                f"the recipe prompt_bert puts a mask into its prompt, but the tokenizer "
                f"{type(tokenizer).__name__} names none (mask_token); use prompt_eol"
            )
        before, after = words_around(self.instructed(self.template), TEXT)
        words = before.replace(MASK, mask), after.replace(MASK, mask)
        at, is_after = (before.find(MASK), False) if MASK in before else (after.find(MASK), True)
        filled = fill(words, tokenizer, texts, max_length)
        return pack([_with_mask(one, at, is_after=is_after) for one in filled])


def _with_mask(filled: Filled, at: int, *, is_after: bool) -> TextInput:
    """Model input whose span is the mask, `at` characters into the words before or after the text."""
    # Found by its place, as a text may hold the mask's name itself.
    char = filled.first_char + len(filled.text) + at if is_after else at
    (token,) = (i for i, (a, b) in enumerate(filled.encoding.offsets) if a <= char < b)
    ids = np.asarray(filled.encoding.ids)
    span = between(token, token + 1, len(ids))
    return TextInput(ids, span, filled.start, filled.end, filled.truncated)
