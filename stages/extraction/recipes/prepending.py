"""Token prepending: a placeholder before the text takes over the state of its last token.

The base class of all recipes with placeholders is here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from permafrost.stages.bounds import MAX_LAYERS, MAX_SEED
from permafrost.stages.extraction.presets import htp_settings
from permafrost.stages.extraction.recipes.inputs import (
    PLACEHOLDER,
    PLACEHOLDER_SLOT,
    TEXT,
    Encoded,
    Filled,
    TextInput,
    between,
    fill,
    pack,
    require_slots,
    with_spelled_template,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe, Rewiring
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import transformers


class RewiredRecipe(Recipe):
    """Placeholders that take over the states of later tokens between blocks; for decoders."""

    start: Annotated[int, Field(le=MAX_LAYERS)] = 1
    """States are copied before the blocks with 0-based index start..stop-1, so that with 1 the first block
    runs on the placeholders' own embeddings."""
    stop: Annotated[int, Field(le=MAX_LAYERS)] | Literal["auto", "htp"] = "auto"
    """`auto`: at the depth of the papers' choice for Llama-2-7B, 7 of 32 blocks; `htp`: as in table 9 of HTP,
    for its backbones."""
    placeholder: Literal["mean", "noise"] = "mean"
    """A placeholder's embedding: the mean of all tokens', or N(0, 1)."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Seed of the noise; unused by `mean`."""

    @property
    def rewiring(self) -> Rewiring:
        """The rewiring of a resolved recipe."""
        assert not isinstance(self.stop, str), (
            "a recipe has to be resolved for a backbone before it is used"
        )
        return Rewiring(self.start, self.stop, self.placeholder, self.seed)

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """As for every recipe, and the last rewired block."""
        if not sizes.is_decoder:
            raise InputError(
                f"the recipe {self.name()} copies a later token's state to an earlier placeholder, but "
                f"{sizes.model_type} is an encoder, where every token sees the whole text anyway; use a "
                f"decoder or another recipe"
            )
        automatic = min(sizes.n_layers, max(self.start + 1, round(7 / 32 * sizes.n_layers)))
        if self.stop == "htp":
            stop = htp_settings(sizes).stop
        else:
            stop = automatic if self.stop == "auto" else self.stop
        if not 0 <= self.start <= stop <= sizes.n_layers:
            raise InputError(
                f"the recipe {self.name()} is rewired from start={self.start} to stop={stop}, but "
                f"0 <= start <= stop <= {sizes.n_layers} has to hold, the number of blocks of the backbone "
                f"({sizes.model_type})"
            )
        return super().definite(sizes) | {"stop": stop}


TEMPLATES = {
    "quoted": 'This sentence : {placeholder}"{text}" means in one word:"',
    "htp": "The sentence means {placeholder}{text} in one word.",
    "htp_paragraph": "The paragraph {placeholder}{text} means in one word.",
    "text": "{placeholder}{text}",
}


class TokenPrependingRecipe(RewiredRecipe):
    """Token Prepending (TP): a placeholder before the text lets all of its tokens attend to its end.

    Without copies (start equal to stop) this is the template without the placeholder, plus one meaningless
    token. The released code pads on the left and counts the padding as positions; we do neither.
    """

    later_fields: ClassVar[frozenset[str]] = Recipe.later_fields | {"spelling"}

    kind: Literal["token_prepending"] = "token_prepending"
    spelling: Literal["quoted", "htp", "htp_paragraph", "text"] = "quoted"
    """Which template to use if none is given: TP's own, with PromptEOL's words; HTP's words, of a sentence
    (section 5.3) or a paragraph (5.2); or the text alone."""
    template: str = TEMPLATES["quoted"]
    """Contains {placeholder} and after it {text}, once each."""
    source: Literal["input_end", "text_end"] = "input_end"
    """Whose state the placeholder takes over: the input's last token, as in the paper, or the text's."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_template(cls, values: Any) -> Any:
        return with_spelled_template(values, TEMPLATES)

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        return require_slots(template, PLACEHOLDER_SLOT, TEXT)

    @property
    def _whole(self) -> str:
        return self.instructed(self.template)

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Tokenises the template without the placeholder, which is then inserted between two tokens."""
        words = words_around(self._whole.replace(PLACEHOLDER_SLOT, ""), TEXT)
        filled = fill(words, tokenizer, texts, max_length, _one_needed)
        return pack([self._input(x) for x in filled])

    def _input(self, filled: Filled) -> TextInput:
        place = _first_token_from(filled, self._whole.index(PLACEHOLDER_SLOT))
        ids = np.insert(np.asarray(filled.encoding.ids), place, PLACEHOLDER)
        start, end = filled.start + 1, filled.end + 1
        source = len(ids) - 1 if self.source == "input_end" else end - 1
        return TextInput(
            ids=ids,
            span=between(start, end, len(ids)),
            start=start,
            end=end,
            truncated=filled.truncated,
            copies=np.asarray([[source, place]], dtype=np.int64),
        )


def _one_needed(filled: Filled) -> NDArray[np.int64]:
    return np.ones(filled.n_own, dtype=np.int64)


def _first_token_from(filled: Filled, char: int) -> int:
    """The first token whose content begins at `char` or later; at the latest the text's first."""
    contents = filled.content_starts(0, filled.start)
    special = np.asarray(filled.encoding.special_tokens_mask[: filled.start], dtype=np.bool_)
    later = np.flatnonzero((contents >= char) & ~special)
    return int(later[0]) if len(later) else filled.start
