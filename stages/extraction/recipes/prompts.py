"""Prompts that ask for a text in one word; the readout is the token that would say it.

The template of each is a field, so that its words are part of a store's identity.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from permafrost.stages.extraction.recipes.template import PromptRecipe

QUOTED = 'This sentence : "{text}" means in one word:"'
SPELLINGS = {"quoted": QUOTED, "plain": "This sentence: {text} means in one word:"}


class PromptEolRecipe(PromptRecipe):
    """PromptEOL: the meaning of a sentence in one word."""

    kind: Literal["prompt_eol"] = "prompt_eol"
    spelling: Literal["quoted", "plain"] = "quoted"
    """Which template is meant where none is given: PromptEOL's own, whose open quote asks for the word, or
    the one without quotes that the Value Aggregation paper prints."""
    template: str = QUOTED

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "template" not in given:
            spelling = given.get("spelling", "quoted")
            return {**given, "template": SPELLINGS.get(str(spelling), QUOTED)}
        return given


class FutureEolRecipe(PromptRecipe):
    """FutureEOL of Value Aggregation: what comes after a text, in one word."""

    kind: Literal["future_eol"] = "future_eol"
    template: str = "Forecasting the subsequent tokens {text} in one word:"


class PretendedCotRecipe(PromptRecipe):
    """Pretended chain of thought: PromptEOL after steps of thought that are claimed, not taken."""

    kind: Literal["pretended_cot"] = "pretended_cot"
    template: str = 'After thinking step by step , this sentence : "{text}" means in one word:"'


class KnowledgeRecipe(PromptRecipe):
    """Knowledge enhancement: PromptEOL after a sentence on what carries meaning.

    The guidance is in our own words; the paper's are not the same.
    """

    kind: Literal["knowledge"] = "knowledge"
    template: str = (
        "What a sentence tells rests mostly on who acts and on the action, and only a little on the words "
        'that describe them. With this in mind , this sentence : "{text}" means in one word:"'
    )
