"""Echo embeddings: the text is repeated, so that tokens of the second copy have seen all of it.

Axes: N tokens of a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int64
from pydantic import field_validator, model_validator

from permafrost.stages.extraction.recipes.inputs import (
    FIRST,
    TEXT,
    Encoded,
    Filled,
    TextInput,
    fill,
    overlapping,
    pack,
    require_slots,
    with_spelled_template,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import transformers

SPELLINGS = {
    "asked": "Say the same again. A sentence: {first} The same sentence: {text}",
    "htp": "{first} {text}",
}


Unseen = Literal["nothing", "first copy", "later tokens", "earlier tokens", "second copy"]


class EchoRecipe(Recipe):
    """Echo: the text twice inside a prompt; the span is the second copy.

    The words around the copies are ours, unless `spelling` says otherwise; Echo's paper tries several, with
    little difference. `max_length` is that of the whole input, both copies included; HTP's released code has
    it for each copy, which is twice as much here.
    """

    kind: Literal["echo"] = "echo"
    later_fields: ClassVar[frozenset[str]] = Recipe.later_fields | {"spelling", "unseen", "between"}
    says_text_twice: ClassVar[bool] = True
    spelling: Literal["asked", "htp"] = "asked"
    """Which template to use if none is given: ours, which asks for the repetition, or HTP's (section 5.3),
    the text twice and nothing else, with the instruction once before it."""
    template: str = SPELLINGS["asked"]
    """Contains {first} and after it {text}, once each; both are filled with the text."""
    unseen: Unseen = "nothing"
    """What tokens of the second copy do not attend to in the first (HTP, figure 2), for decoders: all of it
    (`first copy`), what comes later in the text than themselves, or what comes earlier, each by characters.
    `second copy` is the control, the first not seeing the second, which causal attention hides anyway."""
    between: Literal["auto", "seeing", "blind"] = "auto"
    """Whether tokens between the copies attend to the first one. If they do (`seeing`), they pass on to the
    second what is hidden from it; `auto` is `blind` where something is hidden from the second copy."""

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
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Cuts both copies at the same character."""
        words = words_around(self.instructed(self.template), FIRST, TEXT)
        filled = fill(words, tokenizer, texts, max_length)
        if not self.masks_attention:
            return pack([x.as_input() for x in filled])
        return pack([self._masked(x, len(words[0])) for x in filled])

    @property
    def masks_attention(self) -> bool:
        """If something is unseen."""
        return self.unseen != "nothing"

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """As for every recipe."""
        if self.masks_attention and not sizes.is_decoder:
            raise InputError(
                f"the recipe {self.name()} hides {self.unseen!r} from the other copy, which is made for "
                f"causal decoders, but {sizes.model_type} is an encoder; use a decoder, or unseen: nothing"
            )
        hides = self.unseen in ("first copy", "later tokens", "earlier tokens")
        between = "blind" if hides and self.between == "auto" else self.between
        return super().definite(sizes) | {"between": between}

    def _masked(self, filled: Filled, first_char: int) -> TextInput:
        start, end = overlapping(filled.encoding, first_char, len(filled.text))
        # A token of both copies, as there may be where nothing stands between them, is one of the second.
        end = min(end, filled.start)
        first = np.asarray(filled.encoding.offsets[start:end], dtype=np.int64) - first_char
        own = np.asarray(filled.encoding.offsets[filled.start : filled.end], dtype=np.int64)
        # A store that was made before there was a choice has no `blind` in its identity.
        first_query = end if self.between == "blind" else filled.start
        between = np.tile([start, end], (filled.start - first_query, 1))
        ranges = np.concatenate([between, start + self._ranges(own - filled.first_char, first)])
        queries = np.arange(first_query, filled.end)
        if self.unseen == "second copy":
            queries = np.arange(start, end)
            ranges = np.tile([filled.start, filled.end], (len(queries), 1))
        rows = np.column_stack([queries, ranges])
        return replace(filled.as_input(), unseen=rows[rows[:, 1] < rows[:, 2]])

    def _ranges(
        self, own: Int64[np.ndarray, "n 2"], first: Int64[np.ndarray, "m 2"]
    ) -> Int64[np.ndarray, "n 2"]:
        """For each token of the second copy the tokens of the first that it does not see, from their
        characters [first, one past the last] in the text."""
        none, every = np.zeros(len(own), np.int64), np.full(len(own), len(first), np.int64)
        if self.unseen == "later tokens":
            return np.column_stack([np.searchsorted(first[:, 0], own[:, 1], side="left"), every])
        if self.unseen == "earlier tokens":
            return np.column_stack([none, np.searchsorted(first[:, 1], own[:, 0], side="right")])
        return np.column_stack([none, every])
