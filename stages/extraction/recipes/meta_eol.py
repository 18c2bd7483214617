"""MetaEOL: one text under several prompts, each with a task of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from permafrost.stages.extraction.recipes.inputs import TEXT, Encoded, require_slots
from permafrost.stages.extraction.recipes.prompts import TemplateRecipe
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import transformers

PROMPTS = (
    "Texts can be sorted by what they are about, such as politics, sport, science or trade. Sorted like "
    'that , this sentence : "{text}" belongs under the heading that is in one word:"',
    "Some sentences report a fact and others give an opinion. Read with this difference in mind , this "
    'sentence : "{text}" is in one word:"',
    "A review can be rated from 1 for very bad to 5 for very good. Read as a review , this sentence : "
    '"{text}" deserves a rating which is in one word:"',
    "Behind what people write there is often one feeling that outweighs the others. The feeling behind "
    'this sentence : "{text}" is in one word:"',
    "Two sentences are worth the same if either could stand for the other. Kept to what any such partner "
    'would have to share , this sentence : "{text}" means in one word:"',
    "Another word can often take a word's place without a change of what is said around it. Replaced as a "
    'whole by such a word , this sentence : "{text}" becomes in one word:"',
    "A news item has one fact that must not be left out, and many that may be. Read as news , the fact "
    'that matters most in this sentence : "{text}" is in one word:"',
    "The abstract of a paper turns on one thing, or on how two things are related. Read as an abstract , "
    'this sentence : "{text}" turns on what is in one word:"',
)
"""Our own wording of the paper's eight tasks: topic, fact or opinion, rating, emotion, same meaning,
synonym in context, most critical fact, main entity or relation."""


class MetaEolRecipe(Recipe):
    """MetaEOL: prompts that look at a text from different sides; their embeddings are combined.

    With several prompts this is an ensemble: each member has one prompt and a store of its own.
    """

    kind: Literal["meta_eol"] = "meta_eol"
    is_ensemble: ClassVar[bool] = True
    prompts: tuple[str, ...] = Field(default=PROMPTS, min_length=1)
    """Each contains {text} exactly once; on the command line a JSON list."""

    @field_validator("prompts", mode="before")
    @classmethod
    def _read_from_text(cls, prompts: Any) -> Any:
        if not isinstance(prompts, str):
            return prompts
        try:
            listed = json.loads(prompts)
        except ValueError:
            listed = None
        if not isinstance(listed, list):
            raise ValueError(
                f"{quoted(prompts)} is not a list of prompts; write it as JSON, e.g. "
                '["The topic of {text} is", "The mood of {text} is"]'
            )
        return listed

    @field_validator("prompts")
    @classmethod
    def _have_one_slot_each(cls, prompts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(require_slots(prompt, TEXT) for prompt in prompts)

    def members(self) -> tuple[MetaEolRecipe, ...]:
        """One recipe per prompt."""
        return tuple(self.model_copy(update={"prompts": (prompt,)}) for prompt in self.prompts)

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """As for every recipe; for a single prompt only."""
        self._require_single()
        return super().definite(sizes)

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Encodes as `template` does, with the only prompt."""
        self._require_single()
        return TemplateRecipe(template=self.instructed(self.prompts[0])).encoded(
            tokenizer, texts, max_length
        )

    def _require_single(self) -> None:
        if len(self.prompts) > 1:
            raise InputError(
                f"meta_eol has {len(self.prompts)} prompts and so is not one recipe but an ensemble of "
                f"{len(self.prompts)}, each with a store of its own; use one of them, meta_eol[1] to "
                f"meta_eol[{len(self.prompts)}], or 'permafrost embed', which combines all of them "
                f"(in Python: its members())"
            )
